package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/hold/task"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// steps performs the steps of volumes on a simulated host.
type steps struct{ a *agent }

// Observe observes the paths of a record.
func (s steps) Observe(_ context.Context, r volume.Record, _ volume.Glimpse) volume.Observed {
	h := s.a.h
	o := volume.Observed{Boot: h.boot(), Targets: map[string]volume.Sight{}, Binds: map[string]volume.Sight{}, Watched: map[string]volume.Sight{}}
	h.w.san.mu.Lock()
	defer h.w.san.mu.Unlock()
	o.Staging = h.sight(r.Node.StagingPath)
	for alloc, c := range r.Claims {
		o.Targets[alloc] = h.sight(c.Target)
	}
	for _, w := range r.Node.Watches {
		o.Watched[w.Path] = h.sight(w.Path)
	}
	return o
}

// sight returns the state of a path. The caller holds san.mu.
func (h *host) sight(path string) volume.Sight {
	m, ok := h.mounts[path]
	if !ok {
		return volume.Sight{}
	}
	seen := volume.SeenMount
	if !h.w.san.reaches(h, h.w.san.disks[m.volume]) {
		seen = volume.SeenDead
	}
	return volume.Sight{Seen: seen, Identity: volume.MountIdentity{ID: m.id, Boot: fmt.Sprint(m.boot)}}
}

// reaches reports whether a host can read and write a volume. The caller holds mu.
func (s *san) reaches(h *host, d *disk) bool { return !d.driver.attach || d.attached[h.nodeID()] }

// outcome returns the outcome of a call.
func outcome(kind call.Method, err error) volume.Outcome {
	if err == nil {
		return volume.Outcome{}
	}
	var ce *volume.CallError
	if errors.As(err, &ce) {
		return volume.Outcome{Err: ce}
	}
	return volume.Outcome{Err: volume.HostError(string(kind), err)}
}

// Do performs one step.
func (s steps) Do(ctx context.Context, r volume.Record, a volume.Action, p plugin.View) volume.Outcome {
	if s.a.gone() {
		return volume.Outcome{Err: noAnswer(a.Kind, volume.CodeCanceled), Unsent: true}
	}
	switch a.Kind {
	case call.ControllerPublish:
		_, err := call.Do(ctx, s.controller(r.Volume), call.ControllerPublishRequest{
			ExternalID: r.Volume.ExternalID, NodeID: a.NodeID, Capability: r.Volume.Capabilities[0], ReadOnly: r.Node.Hold.Reader,
		})
		return s.checked(ctx, r, a, p, outcome(a.Kind, err), true)
	case call.ControllerUnpublish:
		if held := s.prove(r); held.Err != nil {
			held.Unsent = true
			return held
		}
		err := call.Run(ctx, s.controller(r.Volume), call.ControllerUnpublishRequest{ExternalID: r.Volume.ExternalID, NodeID: a.NodeID})
		return s.checked(ctx, r, a, p, outcome(a.Kind, err), false)
	case call.NodeStage, call.NodePublish, call.NodeUnpublish, call.NodeUnstage:
		return s.nodeCall(ctx, r, a)
	case volume.Prove:
		return s.prove(r)
	default:
		return volume.Outcome{} // such a step changes only the record
	}
}

// controller returns the controller that makes the calls for a volume. It may be on another host.
func (s steps) controller(v volume.Volume) call.Caller {
	if s.a.h.view(v.PluginID).LacksController() {
		return task.Remote{Service: s.a.tasks, Volume: v}
	}
	return controller(s)
}

// checked compares the result of a controller call with the list of the driver, as package volmgr does.
func (s steps) checked(ctx context.Context, r volume.Record, a volume.Action, p plugin.View, out volume.Outcome, attached bool) volume.Outcome {
	late := slices.ContainsFunc(r.Node.Watches, func(w volume.Watch) bool { return w.Attachment })
	if out.Err != nil || !late || !p.Info.Caps.PublishedNodes {
		return out
	}
	for end := time.Now().Add(5 * time.Second); slices.Contains(s.a.h.w.san.nodes(r.Volume.ExternalID), a.NodeID) != attached; {
		if time.Now().After(end) || ctx.Err() != nil || s.a.gone() {
			return volume.Outcome{Err: failedCall(a.Kind, volume.CodeUnverified, "the list of the driver shows another state")}
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		case <-s.a.dead:
		}
	}
	return out
}

// prove returns an error if a path of the record is mounted.
func (s steps) prove(r volume.Record) volume.Outcome {
	paths := []string{r.Node.StagingPath}
	for _, c := range r.Claims {
		paths = append(paths, c.Target)
	}
	for _, w := range r.Node.Watches {
		paths = append(paths, w.Path)
	}
	s.a.gate()
	s.a.h.w.san.mu.Lock()
	defer s.a.h.w.san.mu.Unlock()
	for _, path := range paths {
		if _, ok := s.a.h.mounts[path]; ok {
			return volume.Outcome{Err: failedCall(volume.Prove, volume.CodeUnverified, path+" is still mounted")}
		}
	}
	return volume.Outcome{}
}

// nodeCall makes a call of the node service.
func (s steps) nodeCall(ctx context.Context, r volume.Record, a volume.Action) volume.Outcome {
	h := s.a.h
	s.a.gate()
	if s.a.gone() {
		return volume.Outcome{Err: noAnswer(a.Kind, volume.CodeCanceled), Unsent: true}
	}

	answer := h.launch(r, a)
	err := awaitAnswer(ctx, s.a, a.Kind, answer, nodeDeadline)
	s.a.gate()
	if s.a.gone() {
		err = noAnswer(a.Kind, volume.CodeCanceled)
	}
	h.w.note(h.name, r.Volume.ID, "%s %s ends: %v", a.Kind, a.Alloc, err)

	out := outcome(a.Kind, err)
	if out.Err != nil || !a.Forward() {
		return out
	}
	h.w.san.mu.Lock()
	sight := h.sight(a.Path)
	h.w.san.mu.Unlock()
	if sight.Seen != volume.SeenMount {
		return volume.Outcome{Err: failedCall(a.Kind, volume.CodeUnverified, "nothing usable is mounted")}
	}
	return volume.Outcome{Boot: h.boot(), Mount: &sight.Identity, Sight: &sight}
}

// launch begins a call of the node service, and lets it end as its fate says. The result receives the
// answer, if there is one.
func (h *host) launch(r volume.Record, a volume.Action) <-chan error {
	san := h.w.san
	san.mu.Lock()
	defer san.mu.Unlock()

	name := fmt.Sprint(h.name, a.Kind, r.Volume.ID)
	f, takes := san.fateOf(name, name, nodeDeadline)
	h.w.count("call: " + string(a.Kind))
	h.w.note(h.name, r.Volume.ID, "%s %s begins (fate %d, %s)", a.Kind, a.Alloc, f, takes)
	if f == failedLater && !a.Forward() {
		f = failedDone // a call that undoes something takes no effect after its answer
	}

	answer := make(chan error, 1)
	switch f {
	case goes, slow:
		h.later(r, a, takes, func(err error) { answer <- err })
	case refused:
		answer <- failedCall(a.Kind, volume.CodeFailedPrecondition, "the plugin refuses the call")
	case failed:
		answer <- failedCall(a.Kind, volume.CodeInternal, "the plugin has failed")
	case failedDone:
		h.later(r, a, takes, func(error) {
			answer <- failedCall(a.Kind, volume.CodeInternal, "the plugin has failed after the effect")
		})
	case failedLater:
		answer <- failedCall(a.Kind, volume.CodeInternal, "the plugin continues after the answer")
		h.later(r, a, takes, func(error) {})
	case expiredLater:
		h.later(r, a, takes, func(error) {})
	}
	return answer
}

// later lets a call of the node service take effect after a time, unless the host reboots before.
func (h *host) later(r volume.Record, a volume.Action, takes time.Duration, done func(error)) {
	boot := h.booted()
	time.AfterFunc(takes, func() {
		h.w.san.mu.Lock()
		defer h.w.san.mu.Unlock()
		if h.booted() == boot {
			done(h.effect(r, a))
		}
	})
}

// effect lets a call of the node service take effect. The caller holds san.mu.
func (h *host) effect(r volume.Record, a volume.Action) error {
	san := h.w.san
	d := san.disks[r.Volume.ExternalID]
	if !a.Forward() {
		delete(h.mounts, a.Path)
		h.w.note(h.name, d.id, "unmounted %s", a.Path)
		return nil
	}

	if !san.reaches(h, d) {
		return failedCall(a.Kind, volume.CodeInternal, "the volume is not attached to this node")
	}
	_, staged := h.mounts[r.Node.StagingPath]
	if a.Kind == call.NodePublish && d.driver.stage && !staged {
		return failedCall(a.Kind, volume.CodeFailedPrecondition, "the volume is not staged")
	}
	if _, ok := h.mounts[a.Path]; ok {
		return nil
	}

	if h.empty {
		h.w.breaks(d.id, "%s mounts %s after its drain", h.name, a.Path)
	}
	h.made++
	writes := !r.Node.Hold.Reader
	if a.Kind == call.NodePublish {
		writes = writes && !r.Claims[a.Alloc].ReadOnly
	}
	h.mounts[a.Path] = mounted{id: h.made, volume: r.Volume.ExternalID, access: r.Node.Hold.Access, writes: writes, boot: h.booted()}
	h.w.note(h.name, d.id, "mounted %s", a.Path)
	h.w.judge.writers(d)
	return nil
}

// named returns the id of the volume that a text of an agent names, or "".
func (w *world) named(text string) string {
	for _, v := range w.volumes {
		if containsWord(text, "volume="+v.ID) || strings.Contains(text, fmt.Sprintf("volume %q", v.ID)) {
			return v.ID
		}
	}
	return ""
}

// containsWord reports whether a text contains a word.
func containsWord(text, word string) bool {
	i := strings.Index(text, word)
	return i >= 0 && (i+len(word) == len(text) || strings.ContainsRune(" \n\"", rune(text[i+len(word)])))
}

// trimLine returns a text without the end of its line.
func trimLine(text string) string { return strings.TrimRight(text, "\n") }
