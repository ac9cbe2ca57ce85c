package provision

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// reporter asks the plugins for the usage and the problems of volumes.
type reporter struct {
	*common
	reports reportCache
}

// LastReport returns the parts of the plugin's last report of a volume that are still valid. It
// does not call the plugin.
func (s *reporter) LastReport(r volume.Record) volume.Report { return s.reports.last(r) }

// reportWithin limits the duration of a report unless the caller sets a smaller limit.
const reportWithin = 5 * time.Second

// Report asks the plugin for the usage and the problems of a volume. It makes only the calls that
// the plugin supports. With storage, it also asks the controller for its information about the
// volume. Report takes at most the duration within, and at most 5 s. If within is 0, only the limit
// of 5 s applies. The field Silent of the result names the calls that returned no answer.
func (s *reporter) Report(ctx context.Context, id string, within time.Duration, storage bool) (volume.Report, error) {
	r, ok := s.Store.Volume(id)
	if !ok {
		return volume.Report{}, noVolume(id)
	}
	if err := s.checkHalt(r.Volume.PluginID); err != nil {
		return volume.Report{}, err
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
			return noVolume(id)
		}
		now, err = s.askAll(ctx, r, storage)
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

	is := s.keepReport(r, now)
	is.Storage, is.Silent = now.Storage, now.Silent
	return is, nil
}

// askAll makes the calls of a report one after the other.
func (s *reporter) askAll(ctx context.Context, r volume.Record, storage bool) (now volume.Report, err error) {
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

// askStats asks for the usage of a volume. A node service older than CSI 1.13 also returns the
// condition of the volume in the answer.
func (s *reporter) askStats(ctx context.Context, p call.Caller, r volume.Record, caps plugin.Caps, now *volume.Report) error {
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

func (s *reporter) askStorage(ctx context.Context, v volume.Volume, caps plugin.Caps, storage bool, now *volume.Report) error {
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

// keepReport stores a report. If the findings of the node service or of the controller changed, it
// emits an event for each finding. If there are no findings any more, it emits one event.
func (s *reporter) keepReport(r volume.Record, now volume.Report) volume.Report {
	was, is := s.reports.keep(r, now)
	for _, side := range []struct {
		by      string
		was, is *volume.Checkup
	}{{volume.ByNode, was.Node, is.Node}, {volume.ByController, was.Controller, is.Controller}} {
		switch {
		case side.is.Same(side.was):
		case side.is == nil || len(side.is.Found) == 0:
			s.emit(r, volume.EventHealthChanged, "the plugin's %s no longer finds a problem", side.by)
		default:
			for _, c := range side.is.Found {
				s.emit(r, volume.EventHealthChanged, "the plugin's %s finds: %s", side.by, c)
			}
		}
	}

	return is
}

// Stats asks the plugin for the usage of a mounted volume.
func (s *reporter) Stats(ctx context.Context, id string) (volume.Report, error) {
	r, ok := s.Store.Volume(id)
	if !ok {
		return volume.Report{}, noVolume(id)
	}
	if err := checkMeasurable(r); err != nil {
		return volume.Report{}, err
	}

	info, err := s.awaitPlugin(ctx, r.Volume.PluginID)
	if err != nil {
		return volume.Report{}, err
	}
	if !info.Caps.Stats {
		return volume.Report{}, volume.Errorf(volume.ErrRefused, "plugin %q does not report the usage of volumes", r.Volume.PluginID)
	}

	p, err := s.Plugins.Reporter(r.Volume.PluginID)
	if err != nil {
		return volume.Report{}, err
	}

	// Any user may ask for the stats, so this call must not block other work on the volume for
	// long.
	ctx, cancel := context.WithTimeout(ctx, reportWithin)
	defer cancel()

	var now volume.Report
	err = s.Queue.Exclusive(ctx, id, func() error {
		// Read the record again: the volume may have been unmounted while this call waited.
		if r, ok = s.Store.Volume(id); !ok {
			return noVolume(id)
		}
		if err := checkMeasurable(r); err != nil {
			return err
		}

		return s.askStats(ctx, p, r, info.Caps, &now)
	})
	if err != nil {
		return now, err
	}

	return s.keepReport(r, now), nil
}

// checkMeasurable refuses a volume that is not mounted, because only the node service can measure
// the usage.
func checkMeasurable(r volume.Record) error {
	if _, _, mounted := whereMounted(r); mounted {
		return nil
	}
	return volume.Errorf(volume.ErrRefused, "volume %q is not mounted, so its usage cannot be measured", r.Volume.ID).
		WithHint("%s", suggest.Command("volctl volume claim %s", r.Volume.ID))
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

// maxFound limits how many problems a report keeps for each plugin service and volume.
const maxFound = 16

// reportCache keeps the last report of each volume, in memory only.
type reportCache struct {
	mu  sync.Mutex
	all map[string]keptReport
}

// keptReport is a report and the record that the volume had at the time of the report.
type keptReport struct {
	volume.Report
	of volume.Record
}

// last returns the parts of the volume's last report that are still valid. The usage and the
// findings of the node service become invalid when the mounts that they describe are gone.
func (rs *reportCache) last(r volume.Record) volume.Report {
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

// mountedSince reports whether the volume is still mounted for a claim whose sequence number is at
// most seq.
func mountedSince(r volume.Record, seq uint64) bool {
	for _, c := range r.Claims {
		if c.Published == volume.Present && c.Seq <= seq {
			return true
		}
	}

	return false
}

// keep merges a new report into the last report of the volume. A part that the new report does not
// contain keeps its last value. keep returns the previous report and the merged report.
func (rs *reportCache) keep(r volume.Record, now volume.Report) (was, is volume.Report) {
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
		rs.all = map[string]keptReport{}
	}
	rs.all[r.Volume.ID] = keptReport{is, r}
	return was, is
}

func (rs *reportCache) forget(id string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.all, id)
}
