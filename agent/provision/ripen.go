package provision

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/backoff"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// pauses are the pauses between two calls while the plugin is still working.
var pauses = backoff.Delays{First: 500 * time.Millisecond, Last: 10 * time.Second}

// pause waits for d, or until ctx ends.
func (s *Service) pause(ctx context.Context, d time.Duration) error {
	if s.Pause != nil {
		return s.Pause(ctx, d)
	}

	t := time.NewTimer(d)
	defer t.Stop()

	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tell stores the progress of a snapshot. Empty words delete the entry.
func (s *Service) tell(key, words string) {
	s.doing.mu.Lock()
	defer s.doing.mu.Unlock()

	if s.doing.words == nil {
		s.doing.words = map[string]string{}
	}
	s.doing.words[key] = words
	if words == "" {
		delete(s.doing.words, key)
	}
}

func (s *Service) told(key string) string {
	s.doing.mu.Lock()
	defer s.doing.mu.Unlock()
	return s.doing.words[key]
}

// ripen waits until a new snapshot is ready to use.
func (t *taking) ripen(ctx context.Context, got call.GroupSnapshot) (call.GroupSnapshot, error) {
	for try := 1; !got.Ready; try++ {
		if t.last == nil {
			t.s.tell(t.intent.Key(), fmt.Sprintf("%q is not ready yet", got.ID))
		}
		if t.s.pause(ctx, pauses.After(try)) != nil {
			return got, t.late(ctx)
		}

		now, err := t.look(ctx, got)
		var ce *volume.CallError
		switch called := errors.As(err, &ce); {
		case err == nil:
			got, t.last = now, nil
		case ctx.Err() != nil:
			return got, t.late(ctx)
		case called && ce.Code == volume.CodeNotFound:
			return got, errors.Join(t.gone(err), t.s.drop(ctx, t.intent))
		case called && ce.Final(), !called && !errors.Is(err, volume.ErrPluginUnavailable):
			return got, t.unclear(err, fmt.Sprintf("%v; it is unknown whether %s %q (id %q) is ready", err, t.noun(), t.intent.Name, got.ID))
		default:
			t.last = err
			t.s.tell(t.intent.Key(), err.Error())
		}
	}

	return got, t.note(ctx, got)
}

// gone returns the error for a snapshot that its plugin no longer has.
func (t *taking) gone(cause error) error {
	return t.worded(cause, volume.Errorf(nil, "plugin %q no longer has %s %q: it failed there or was deleted", t.intent.PluginID, t.noun(), t.intent.ID))
}

// look asks the plugin for the state of a snapshot. If the plugin has no call for this, look
// repeats the create call, which also returns the state.
func (t *taking) look(ctx context.Context, was call.GroupSnapshot) (call.GroupSnapshot, error) {
	if !t.intent.Group && !t.caps.GetSnapshot && !t.caps.ListSnapshots {
		return t.call(ctx) // with the same name, the plugin returns the same snapshot and its present state
	}

	p, secrets, err := t.reach()
	if err != nil {
		return was, err
	}

	switch {
	case t.intent.Group:
		ref := call.GetGroupSnapshotRequest{ID: was.ID, Secrets: secrets}
		for _, member := range was.Snapshots {
			ref.SnapshotIDs = append(ref.SnapshotIDs, member.ID)
		}
		return call.Do(ctx, p, ref)
	case t.caps.GetSnapshot:
		one, err := call.Do(ctx, p, call.GetSnapshotRequest{ID: was.ID, Secrets: secrets})
		return alone(one), err
	default:
		page, err := call.Do(ctx, p, call.ListSnapshotsRequest{ID: was.ID, Secrets: secrets})
		for _, one := range page.Entries {
			if one.ID == was.ID {
				return alone(one), err
			}
		}

		return was, err // the snapshot is not listed yet
	}
}

// late returns the error for a snapshot that was not ready before the wait ended. The plugin
// continues to work on a snapshot that it has begun.
func (t *taking) late(ctx context.Context) error {
	in := t.intent
	switch {
	case in.ID != "":
		return t.worded(t.last, volume.Errorf(volume.ErrTimeout, "%s %q (id %q at plugin %q) is not ready after %s; the plugin continues",
			t.noun(), in.Name, in.ID, in.PluginID, t.wait).WithHint("to see its progress: %s; to wait for it: %s", suggest.Command("volctl volume snapshot list --plugin %s", in.PluginID), t.again()))
	case t.unsure:
		return t.unclear(t.last, fmt.Sprintf("after %s, plugin %q has not confirmed %s %q; it may still be working, so the agent keeps the intent",
			t.wait, in.PluginID, t.noun(), in.Name))
	default:
		return errors.Join(volume.Errorf(volume.ErrTimeout, "%s %q was not begun within %s: another call for the volume is running", t.noun(), in.Name, t.wait).
			WithRemedy(remedy.Of(remedy.ShowVolume, in.Volumes[0])), t.s.drop(ctx, in))
	}
}

// unclear returns an error with an unknown outcome. Its hint names the commands that continue with
// the snapshot or forget it.
func (t *taking) unclear(cause error, message string) error {
	kind := kindOf(cause)
	var ce *volume.CallError
	if errors.As(cause, &ce) && atIt(ce) {
		kind = volume.ErrTimeout
	}

	return t.worded(cause, volume.Errorf(kind, "%s", message).
		WithHint("%s", "repeat the command to continue: "+t.again()+
			"; to forget the intent: "+suggest.Command("volctl volume snapshot delete %s %s --forget", t.intent.PluginID, t.intent.Name)))
}

func (t *taking) worded(cause error, words *volume.Error) error {
	step := call.CreateSnapshot
	if t.intent.Group {
		step = call.CreateGroupSnapshot
	}
	return unclear(step, cause, words)
}

// notTaken deletes the intent if the plugin certainly made no snapshot. Otherwise it reports that a
// snapshot may exist.
func (t *taking) notTaken(ctx context.Context, cause error) error {
	var ce *volume.CallError
	called := errors.As(cause, &ce)
	if t.unsure || called && ce.Uncertain() {
		whose := fmt.Sprintf("plugin %q", t.intent.PluginID)
		if !called || !ce.Uncertain() {
			whose = "an earlier call"
		}
		return t.unclear(cause, fmt.Sprintf("%v; it is unknown whether %s made %s %q, so the agent keeps the intent", cause, whose, t.noun(), t.intent.Name))
	}
	if err := t.s.drop(ctx, t.intent); err != nil {
		return errors.Join(cause, err)
	}
	if !called {
		return cause
	}
	if words := answered(t.intent.PluginID, ce); words != nil {
		return t.worded(cause, words)
	}

	return cause
}

// answered returns the error for a snapshot request that the plugin rejects. It returns nil for all
// other errors.
func answered(pluginID string, ce *volume.CallError) *volume.Error {
	switch ce.Code {
	case volume.CodeNotFound:
		return volume.Errorf(volume.ErrNotFound, "plugin %q reports \"not found\": %s", pluginID, ce.Message)
	case volume.CodeFailedPrecondition, volume.CodeResourceExhausted, volume.CodeAlreadyExists:
		return volume.Errorf(volume.ErrRefused, "plugin %q refuses the request: %s", pluginID, ce.Message)
	case volume.CodeUnimplemented:
		return volume.Errorf(volume.ErrRefused, "plugin %q does not support the request: %s", pluginID, ce.Message)
	case volume.CodeInvalidArgument, volume.CodeOutOfRange:
		return volume.Errorf(volume.ErrInvalid, "plugin %q refuses the request: %s", pluginID, ce.Message)
	case volume.CodePermissionDenied, volume.CodeUnauthenticated:
		return volume.Errorf(volume.ErrRefused, "plugin %q refuses the request: %s", pluginID, ce.Message).WithHint("give the secrets that the plugin needs: --secret KEY=file:PATH")
	}

	return nil
}
