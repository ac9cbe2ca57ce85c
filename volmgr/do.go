package volmgr

import (
	"context"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// Do performs one step of a record and returns its outcome.
func (m *Manager) Do(ctx context.Context, r volume.Record, a volume.Action, p plugin.View) volume.Outcome {
	s := step{m: m, ctx: ctx, r: r, a: a, view: p}
	switch a.Kind {
	case call.ControllerPublish:
		return controllerStep{s}.controllerPublish()
	case call.ControllerUnpublish:
		return controllerStep{s}.controllerUnpublish()
	case call.NodeStage:
		return s.stage()
	case call.NodeUnstage:
		return s.unstage()
	case call.NodePublish:
		return publishStep{s}.publish()
	case call.NodeUnpublish:
		return publishStep{s}.unpublish()
	case volume.Own:
		return s.own()
	case call.ControllerExpand:
		return expandStep{s}.controllerExpand()
	case call.NodeExpand:
		return expandStep{s}.nodeExpand()
	case volume.Bind:
		return bindStep{s}.bind()
	case volume.Unbind:
		return bindStep{s}.unbind()
	case volume.Unmount:
		return unmountStep{s}.withoutPlugin()
	case volume.Prove:
		return s.prove()
	default:
		return volume.Outcome{} // such a step changes only the record
	}
}

// Observe observes every path of a record. It skips the path in now, which the caller has just
// observed. Each observation has a time limit, so a hanging path does not delay the others. Observe
// does not open the paths of unwanted claims, because an open file would keep the mount busy during
// the unmount.
func (m *Manager) Observe(ctx context.Context, r volume.Record, now volume.Glimpse) volume.Observed {
	o := volume.Observed{
		Boot:    m.o.Host.Boot(),
		Targets: map[string]volume.Sight{}, Binds: map[string]volume.Sight{}, Watched: map[string]volume.Sight{},
	}

	var paths []string
	var puts []func(volume.Sight)
	look := func(path string, put func(volume.Sight)) {
		switch path {
		case "":
		case now.Path:
			put(now.Sight)
		default:
			paths, puts = append(paths, path), append(puts, put)
		}
	}

	leaving, wanted := map[string]bool{}, len(r.Claims) == 0
	look(r.Node.StagingPath, func(s volume.Sight) { o.Staging = s })
	for alloc, c := range r.Claims {
		wanted = wanted || c.Wanted
		leaving[c.Target], leaving[c.At] = !c.Wanted, !c.Wanted
		look(c.Target, func(s volume.Sight) { o.Targets[alloc] = s })
		if s, lent := m.lentSight(r.Volume.ID, c); lent && c.At != "" && c.At != now.Path {
			o.Binds[alloc] = s
			continue
		}
		look(c.At, func(s volume.Sight) { o.Binds[alloc] = bindSight(s) })
	}

	for _, w := range r.Node.Watches {
		look(w.Path, func(s volume.Sight) { o.Watched[w.Path] = s })
	}

	leaving[r.Node.StagingPath] = !wanted
	for i, s := range m.o.Host.LookAll(ctx, paths, leaving) {
		puts[i](s)
	}

	return o
}
