package service

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// Records reads the stored records. It shows a claim as detaching if the claim's owner has ended.
type Records interface {
	Volume(id string) (volume.Record, bool)
	Volumes() []volume.Record
}

// Queue reports the current state of volumes, and signals changes of the state.
type Queue interface {
	Look(ctx context.Context, r volume.Record) (volume.Observed, *volume.Attempt)
	Changed(id string) <-chan struct{}
}

// PluginViews reports the state of plugins.
type PluginViews interface {
	View(id string) plugin.View

	// Tail returns the last lines of a plugin's log, without the secrets that the agent knows. It
	// returns none if another program stores the log.
	Tail(id string, lines int) []string
}

// Reports returns the result of the last call that asked a plugin about a volume.
type Reports interface {
	LastReport(r volume.Record) volume.Report
}

// view describes volumes and claims for the API. The types of all nouns share it.
type view struct {
	records Records
	queue   Queue
	plugins PluginViews
	reports Reports
	owners  volume.Owners
}

// record returns the record of a volume.
func (v view) record(id string) (volume.Record, error) {
	if err := volume.CheckID("volume id", id); err != nil {
		return volume.Record{}, asAPI(err)
	}

	rec, ok := v.records.Volume(id)
	if !ok {
		return rec, asAPI(volume.Errorf(volume.ErrNotFound, "no volume %q", id).WithHint("volctl volume list"))
	}
	return rec, nil
}

// pluginOf returns the plugin id of a volume, or an empty string if there is no such volume.
func (v view) pluginOf(id string) string {
	r, _ := v.records.Volume(id)
	return r.Volume.PluginID
}

// sorted returns all records in ascending order of their ids.
func (v view) sorted() []volume.Record {
	byID := func(a, b volume.Record) int { return strings.Compare(a.Volume.ID, b.Volume.ID) }
	return slices.SortedFunc(slices.Values(v.records.Volumes()), byID)
}

// storage identifies a volume by its driver and its external id.
type storage struct{ driver, external string }

// registered maps the volumes of all drivers to the ids under which they are registered here.
func (v view) registered() map[storage]string {
	known := map[storage]string{}
	for _, r := range v.records.Volumes() {
		if r.Volume.ExternalID != "" {
			known[storage{r.Volume.Driver, r.Volume.ExternalID}] = r.Volume.ID
		}
	}
	return known
}

// lookWithin is the time limit for checking a volume's mounts when a caller asks for its status. A
// hanging mount must not delay the answer for longer.
const lookWithin = 500 * time.Millisecond

// listWithin and looksAtOnce apply to a list of volumes. listWithin is the time limit for each
// volume, and looksAtOnce is the number of volumes that the service checks in parallel. Even with a
// hundred hanging mounts, the list takes less than a second.
const (
	listWithin  = 250 * time.Millisecond
	looksAtOnce = 48
)

// errorLines and statusLines are the numbers of log lines that an error and a volume's status
// contain.
const (
	errorLines  = 3
	statusLines = 3
)

// describe returns the status of one volume. It adds the last lines of the plugin's log if the
// plugin may be the cause of a problem and the caller may read the log.
func (v view) describe(ctx context.Context, by Caller, r volume.Record) api.Volume {
	out, failed := v.look(ctx, r, lookWithin)
	if failed && out.Attempt != nil && by.MayWrite {
		out.Attempt.PluginLog = v.logOf(r.Volume.PluginID, statusLines, r.Volume.ID)
	}
	return out
}

// look returns the status of a volume, within a time limit. It also reports whether the plugin may
// be the cause of the volume's problem.
func (v view) look(ctx context.Context, r volume.Record, within time.Duration) (out api.Volume, failed bool) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()

	begun := time.Now()
	obs, at := v.queue.Look(ctx, r)
	out = toVolume(r, obs, at, v.reports.LastReport(r), v.owners)
	if out.State == api.StateMounted {
		out.AnswersMS = float64(time.Since(begun).Microseconds()) / 1000
	}
	called := at != nil && at.Err != nil && at.Err.Code != volume.CodeHost
	return out, called || at != nil && at.Action.Cause == volume.CausePlugin
}

// describeAll returns the status of all volumes, sorted by id.
func (v view) describeAll(ctx context.Context) []api.Volume {
	rs := v.sorted()
	out := make([]api.Volume, len(rs))
	var wg sync.WaitGroup
	slots := make(chan struct{}, looksAtOnce)

	for i, r := range rs {
		slots <- struct{}{}
		wg.Go(func() {
			out[i], _ = v.look(ctx, r, listWithin)
			<-slots
		})
	}

	wg.Wait()
	return out
}

// logOf returns the last n lines of a plugin's log. If volumes are given, it omits lines that name
// only other volumes of the plugin.
func (v view) logOf(pluginID string, n int, volumes ...string) []string {
	if len(volumes) == 0 {
		return v.plugins.Tail(pluginID, n)
	}
	lines := linesAbout(v.plugins.Tail(pluginID, searched), v.records.Volumes(), pluginID, volumes)
	return lines[max(0, len(lines)-n):]
}

// explain converts an error to an API error. If a call failed or the plugin is not ready, explain
// adds the last lines of the plugin's log for a caller who may read the log. The log often explains
// more than the plugin's answer. It explains nothing about a volume that waits for another host. If
// volumes are given, explain omits lines that name only other volumes of the plugin.
func (v view) explain(by Caller, err error, pluginID string, volumes ...string) error {
	var ce *volume.CallError
	called := errors.As(err, &ce) && ce.Code != volume.CodeHost && ce.Code != volume.CodeHeld
	if err == nil || pluginID == "" || !called && !errors.Is(err, volume.ErrPluginUnavailable) {
		return asAPI(err)
	}

	e := APIError(err)
	if by.MayWrite {
		if lines := v.logOf(pluginID, errorLines, volumes...); len(lines) > 0 {
			if e.Details == nil {
				e.Details = map[string]string{}
			}
			e.Details[api.DetailLog] = strings.Join(lines, "\n")
		}
	}

	if e.Hint == "" {
		e.Hint = suggest.Words(v.plugins.View(pluginID).LogRemedy(pluginID))
	}
	return e
}

// explainVolume converts an error about a volume to an API error. It adds lines of the log of the
// volume's plugin, as explain does.
func (v view) explainVolume(by Caller, err error, id string) error {
	if err == nil {
		return nil
	}
	return v.explain(by, err, v.pluginOf(id), id)
}
