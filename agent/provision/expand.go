package provision

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// expander makes volumes larger.
type expander struct{ *common }

// Expand makes a volume larger. It stores the intent, and the queue then calls the plugin. The
// queue retries until the expansion ends, even if the caller does not wait. With a wait, Expand
// returns when the agent has completed every step that is currently possible, or when the expansion
// has failed.
func (s *expander) Expand(ctx context.Context, id string, size int64, wait time.Duration) (volume.Record, volume.Change, error) {
	if v, shared, err := s.shared(ctx, id); err != nil || shared {
		if err != nil {
			return failed(err)
		}
		return s.expandShared(ctx, v, size, wait)
	}

	r, ok := s.Store.Volume(id)
	if !ok {
		return failed(noVolume(id))
	}

	was := r.Volume
	info, err := s.pluginInfo(ctx, was.PluginID)
	if err != nil {
		return failed(err)
	}
	if _, changed, err := volume.Expand(r, size, info, s.Owners); err != nil || !changed && hasSize(r, size) {
		return r, volume.Change{Outcome: volume.Unchanged}, err
	}
	if info, err = s.awaitPlugin(ctx, was.PluginID); err != nil {
		return failed(err)
	}

	begun := false
	err = s.Store.Update(ctx, func(tx Tx) (err error) {
		if r, ok = tx.Volume(id); !ok {
			return noVolume(id)
		}

		if r, begun, err = volume.Expand(r, size, info, s.Owners); begun {
			tx.PutVolume(r)
		}

		return err
	})
	if err != nil {
		return failed(err)
	}
	if e := r.Volume.Expansion; e.Want == 0 && e.Node == 0 {
		return r, volume.Change{Outcome: volume.Unchanged}, nil
	}

	if begun {
		s.emit(r, volume.EventExpandBegun, "expanding to %s", volume.Size(size))
	}
	s.Queue.Wake(id)
	if wait <= 0 {
		return r, volume.Change{Outcome: volume.Growing}, nil
	}
	if r, err = s.awaitExpanded(ctx, id, size, wait); err != nil {
		return failed(err)
	}
	// The volume is not mounted, so the plugin's node service cannot expand it yet.
	if r.Volume.Capacity < size {
		return r, volume.Change{Outcome: volume.Growing}, nil
	}

	had := "unknown"
	if was.Capacity > 0 {
		had = volume.Size(was.Capacity)
	}

	return r, volume.Change{Outcome: volume.Grown, Fields: []string{fmt.Sprintf("capacity: %s → %s", had, volume.Size(r.Volume.Capacity))}}, nil
}

// WithdrawExpansion cancels an expansion that does not succeed. It does not call the plugin, so it
// also works while the plugin is down.
func (s *expander) WithdrawExpansion(ctx context.Context, id string) (r volume.Record, ch volume.Change, err error) {
	if _, shared, err := s.shared(ctx, id); err != nil || shared {
		if err != nil {
			return failed(err)
		}
		return s.withdrawShared(ctx, id)
	}

	ch = volume.Change{Outcome: volume.Unchanged}
	err = s.Store.Update(ctx, func(tx Tx) error {
		was, ok := tx.Volume(id)
		if !ok {
			return noVolume(id)
		}

		var withdrawn bool
		if r, withdrawn = volume.WithdrawExpansion(was); withdrawn {
			e := was.Volume.Expansion
			ch = volume.Change{Outcome: volume.GivenUp, Fields: []string{"expansion: " + volume.Size(max(e.Want, e.Node)) + " → none"}}
			tx.PutVolume(r)
		}

		return nil
	})
	if err != nil {
		return failed(err)
	}

	if ch.Outcome == volume.GivenUp {
		s.emit(r, volume.EventExpandWithdrawn, "%s", ch.Fields[0])
		s.Queue.Wake(id)
	}

	return r, ch, nil
}

// hasSize reports whether the volume already has the requested size.
func hasSize(r volume.Record, size int64) bool {
	done, err := volume.Expanded(r, size)
	return done && err == nil
}

// growthInfo returns the capabilities of the plugin that expands a registered volume. If size is 0,
// the size does not change, and growthInfo returns an empty value without waiting for the plugin.
func (s *expander) growthInfo(ctx context.Context, pluginID string, size int64, dry bool) (plugin.Info, error) {
	switch {
	case size == 0:
		return plugin.Info{}, nil
	case dry:
		return s.pluginInfo(ctx, pluginID)
	default:
		return s.awaitPlugin(ctx, pluginID)
	}
}

// awaitExpanded waits until the agent has completed every step of the expansion that is currently
// possible.
func (s *expander) awaitExpanded(ctx context.Context, id string, size int64, wait time.Duration) (volume.Record, error) {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()

	for {
		changed := s.Queue.Changed(id)
		r, ok := s.Store.Volume(id)
		if !ok {
			return r, volume.Errorf(volume.ErrNotFound, "volume %q was deregistered meanwhile", id)
		}

		done, err := volume.Expanded(r, size)
		if err != nil {
			return r, expandError(r, size, err)
		}
		if done {
			return r, nil
		}

		select {
		case <-changed:
		case <-waiting.Done():
			if ctx.Err() != nil {
				return r, ctx.Err()
			}
			return r, s.expandTimeout(r, size, wait)
		}
	}
}

// expandError returns the error for an expansion that the plugin has rejected.
func expandError(r volume.Record, size int64, cause error) error {
	v := r.Volume
	var ce *volume.CallError
	if !errors.As(cause, &ce) {
		return cause
	}

	words := &volume.Error{Message: fmt.Sprintf("plugin %q does not expand volume %q to %s: %s", v.PluginID, v.ID, volume.Size(size), ce.Message)}
	if v.Expansion.Node > 0 {
		words.Message = fmt.Sprintf("the storage of volume %q has %s, but the node did not complete the expansion: %v", v.ID, volume.Size(v.Capacity), ce)
		words.Remedy = remedy.Of(remedy.ShowVolume, v.ID)
	}

	switch ce.Code {
	case volume.CodeInvalidArgument, volume.CodeOutOfRange, volume.CodeHost:
		words.Kind = volume.ErrInvalid
	case volume.CodeFailedPrecondition, volume.CodeUnimplemented:
		words.Kind = volume.ErrRefused
	}

	return withCall(call.Method(ce.Step), cause, words)
}

// expandTimeout returns the error for an expansion that did not finish within the wait. The error
// describes the current step. The queue continues the expansion.
func (s *expander) expandTimeout(r volume.Record, size int64, wait time.Duration) error {
	v, at := r.Volume, s.Queue.Attempt(r.Volume.ID, "")
	words := volume.Errorf(volume.ErrTimeout, "volume %q was not expanded to %s within %s; the agent continues", v.ID, volume.Size(size), wait.Round(time.Millisecond)).
		WithHint("to wait for it, repeat the command; to see its progress: %s", suggest.Command("volctl volume status %s", v.ID))
	switch p := s.Plugins.View(v.PluginID); {
	case at != nil && at.Err != nil:
		known := "the agent retries"
		if at.Err.Unknown() {
			known = "it is unknown whether that had an effect, and the agent retries"
		}
		words.Message += fmt.Sprintf(": %v; %s", at.Err, known)
		return &volume.Awaited{Err: words, At: *at}
	case at != nil && at.Action.Cause == volume.CausePlugin:
		words.Kind, words.Remedy = volume.ErrPluginUnavailable, p.Remedy(v.PluginID)
		words.Message += ": " + at.Action.Reason
	case at != nil && at.Action.Reason != "":
		words.Message += ": " + at.Action.Reason
	case at != nil && at.Running:
		words.Message += fmt.Sprintf(": %s has not answered", at.Action.Kind)
	}

	return words
}
