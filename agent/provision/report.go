package provision

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// maxFound limits how many problems a report keeps for each plugin service and volume.
const maxFound = 16

// last returns the parts of the volume's last report that are still valid. The usage and the
// findings of the node service expire with the mounts that they describe.
func (rs *reports) last(r volume.Record) volume.Report {
	rs.mu.Lock()
	defer rs.mu.Unlock()

	k, ok := rs.all[r.Volume.ID]
	switch {
	case !ok:
		return volume.Report{}
	case !k.of.Same(r):
		delete(rs.all, r.Volume.ID)
		return volume.Report{}
	case !mountedSince(r, k.of.Node.Seq):
		k.Stats, k.StatsAt, k.Node = nil, time.Time{}, nil
	}

	return k.Report
}

// mountedSince reports whether the volume is still mounted for a claim whose Seq is at most seq.
func mountedSince(r volume.Record, seq uint64) bool {
	for _, c := range r.Claims {
		if c.Published == volume.Present && c.Seq <= seq {
			return true
		}
	}

	return false
}

// keep merges a new report into the last report of the volume. A part that is missing in the new
// report keeps its last value. keep returns the merged report and the report before it.
func (rs *reports) keep(r volume.Record, now volume.Report) (was, is volume.Report) {
	was = rs.last(r)
	is = was
	if now.Stats != nil {
		is.Stats, is.StatsAt = now.Stats, now.StatsAt
	}
	if now.Node != nil {
		is.Node = now.Node
	}
	if now.Controller != nil {
		is.Controller = now.Controller
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()

	if rs.all == nil {
		rs.all = map[string]kept{}
	}
	rs.all[r.Volume.ID] = kept{is, r}
	return was, is
}

// LastReport returns the parts of the plugin's last report of a volume that are still valid. It
// does not call the plugin.
func (s *Service) LastReport(r volume.Record) volume.Report { return s.reports.last(r) }

// reportWithin limits the duration of a report unless the caller sets a smaller limit.
const reportWithin = 5 * time.Second

// Report asks the plugin for the usage and the problems of a volume. It makes only the calls that
// the plugin supports. With storage, it also asks the controller for its information about the
// volume. Report takes at most the duration within, or 5 s if within is 0. The field Silent of the
// result names the calls that returned no answer.
func (s *Service) Report(ctx context.Context, id string, within time.Duration, storage bool) (volume.Report, error) {
	r, ok := s.Store.Volume(id)
	if !ok {
		return volume.Report{}, unknown(id)
	}
	if s.Halt != "" {
		return volume.Report{}, volume.Errorf(volume.ErrRefused, "cannot call plugin %q: %s", r.Volume.PluginID, s.Halt)
	}

	if within <= 0 || within > reportWithin {
		within = reportWithin
	}
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()

	var now volume.Report
	err := s.Queue.Exclusive(ctx, id, func() (err error) {
		if r, ok = s.Store.Volume(id); !ok {
			return unknown(id)
		}
		now, err = s.ask(ctx, r, storage)
		return err
	})

	switch {
	case outer.Err() != nil:
		return now, outer.Err()
	case errors.Is(err, context.DeadlineExceeded):
		now.Silent = append(now.Silent, "no call was made: another call for the volume is still running")
	case err != nil:
		return now, err
	}

	is := s.keep(r, now)
	is.Storage, is.Silent = now.Storage, now.Silent
	return is, nil
}

// ask makes the calls of a report one after the other.
func (s *Service) ask(ctx context.Context, r volume.Record, storage bool) (now volume.Report, err error) {
	v := r.Volume
	view := s.Plugins.View(v.PluginID)
	caps := view.Info.Caps
	p, err := s.Plugins.Reporter(v.PluginID)
	if err != nil {
		return now, err
	}

	try := func(k call.Method, call func() error) {
		if err := call(); err != nil {
			now.Silent = append(now.Silent, silence(k, err))
		}
	}

	path, staging, mounted := whereMounted(r)
	if mounted && view.ReadyFor(call.NodeStats) {
		if caps.Stats {
			try(call.NodeStats, func() error { return s.askStats(ctx, p, r, caps, &now) })
		}
		if caps.NodeHealth {
			try(call.NodeHealth, func() error {
				h, err := call.Do(ctx, p, call.NodeHealthRequest{ExternalID: v.ExternalID, Path: path, StagingPath: staging})
				if err == nil {
					now.Node = found(h.Entries)
				}
				return err
			})
		}
	}

	if v.ExternalID == "" || !view.ReadyFor(call.ControllerHealth) {
		return now, nil
	}

	if caps.Health {
		try(call.ControllerHealth, func() error {
			secrets, err := s.Secrets(v)
			if err != nil {
				return err
			}

			h, err := call.Do(ctx, p, call.ControllerHealthRequest{ExternalID: v.ExternalID, Secrets: secrets})
			if err == nil {
				now.Controller = found(h.Entries)
			}

			return err
		})
	}

	// Drivers older than CSI 1.13 report the condition of a volume in ControllerGetVolume.
	if caps.Get && (storage || caps.Condition && !caps.Health) {
		try(call.ControllerGetVolume, func() error { return s.askStorage(ctx, v, caps, storage, &now) })
	}

	return now, nil
}

// askStats asks for the usage of a volume. A node service older than CSI 1.13 also reports the
// condition of the volume in this call.
func (s *Service) askStats(ctx context.Context, p call.Caller, r volume.Record, caps plugin.Caps, now *volume.Report) error {
	path, staging, _ := whereMounted(r)
	st, err := call.Do(ctx, p, call.StatsRequest{ExternalID: r.Volume.ExternalID, Path: path, StagingPath: staging})
	if err != nil {
		return err
	}

	now.Stats, now.StatsAt = &st, time.Now().UTC()
	if caps.NodeCondition && !caps.NodeHealth {
		now.Node = found(conditions(st.Condition))
	}

	return nil
}

func (s *Service) askStorage(ctx context.Context, v volume.Volume, caps plugin.Caps, storage bool, now *volume.Report) error {
	p, err := s.Plugins.Reporter(v.PluginID)
	if err != nil {
		return err
	}

	got, err := call.Do(ctx, p, call.GetVolumeRequest{ExternalID: v.ExternalID})
	if err != nil {
		return err
	}

	if storage {
		now.Storage = &got
	}
	if caps.Condition && !caps.Health {
		now.Controller = found(conditions(got.Condition))
	}

	return nil
}

func conditions(c *call.Condition) []call.Condition {
	if c == nil {
		return nil
	}
	return []call.Condition{*c}
}

func found(all []call.Condition) *volume.Checkup {
	return &volume.Checkup{At: time.Now().UTC(), Found: all[:min(len(all), maxFound)]}
}

// silence explains why a call returned no answer.
func silence(k call.Method, err error) string {
	var ce *volume.CallError
	switch {
	case errors.As(err, &ce) && (ce.Code == volume.CodeDeadlineExceeded || ce.Code == volume.CodeCanceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("%s: no answer in time", k)
	case errors.As(err, &ce):
		return ce.Error()
	default:
		return fmt.Sprintf("%s: %v", k, err)
	}
}

// keep stores a report, and emits an event for each problem that appeared or disappeared.
func (s *Service) keep(r volume.Record, now volume.Report) volume.Report {
	was, is := s.reports.keep(r, now)
	for _, side := range []struct {
		by      string
		was, is *volume.Checkup
	}{{volume.ByNode, was.Node, is.Node}, {volume.ByController, was.Controller, is.Controller}} {
		switch {
		case side.is.Same(side.was):
		case side.is == nil || len(side.is.Found) == 0:
			s.say(r, "health-changed", "the plugin's %s no longer finds a problem", side.by)
		default:
			for _, c := range side.is.Found {
				s.say(r, "health-changed", "the plugin's %s finds: %s", side.by, c)
			}
		}
	}

	return is
}

// whereMounted returns the target of a mounted claim, and the staging path of the volume.
func whereMounted(r volume.Record) (path, staging string, mounted bool) {
	if r.Node.Staged == volume.Present {
		staging = r.Node.StagingPath
	}
	for _, c := range r.Ordered() {
		if c.Published == volume.Present {
			return c.Target, staging, true
		}
	}

	return "", staging, false
}
