package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/backoff"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// follow makes the calls that the tasks of this host ask for, until ctx ends.
func (s *Service) follow(ctx context.Context) {
	own := shared.TasksOf(s.Node)
	for ; ctx.Err() == nil; backoff.Pause(ctx, s.Every) {
		page, err := s.Store.Range(ctx, own, 1, 0)
		if err != nil {
			continue
		}
		if err := shared.Each(ctx, s.Store, own, func(kv shared.KV) error { s.begin(ctx, kv.Key); return nil }); err != nil {
			continue
		}

		for evs := range s.Store.Watch(ctx, []shared.Span{own}, page.Revision+1) {
			for _, c := range evs.Changes {
				if !c.Deleted {
					s.begin(ctx, c.Key)
				}
			}
		}
	}
}

// begin starts a task. If this host already works on a task for the same volume, it looks again after
// that.
func (s *Service) begin(ctx context.Context, key string) {
	_, id, ok := shared.HoldIDs(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !ok {
		return
	}
	if _, busy := s.running[id]; busy {
		s.running[id] = true
		return
	}

	s.running[id] = false
	s.tasks.Go(func() {
		for more := true; more; more = s.asked(id) {
			s.persist(ctx, id)
		}
	})
}

// asked reports whether begin was called for a volume during its task. If not, the task has ended.
func (s *Service) asked(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	again := s.running[id]
	s.running[id] = false
	if !again {
		delete(s.running, id)
	}
	return again
}

// persist works on the task for a volume until it has ended, or ctx ends.
func (s *Service) persist(ctx context.Context, id string) {
	for tries := 0; ctx.Err() == nil; tries++ {
		err := s.execute(ctx, id)
		if err == nil {
			return
		}
		if tries == 0 {
			s.Log.Warn("cannot make a controller call for another host; it is tried again", "volume", id, "error", err)
		}
		backoff.Pause(ctx, s.Every)
	}
}

// execute works on the task for a volume until there is none. It returns an error if it must be
// called again.
func (s *Service) execute(ctx context.Context, id string) error {
	for {
		who, err := s.Asker()
		if err != nil {
			return err
		}
		e, err := s.read(ctx, s.Node, id)
		if err != nil {
			return err
		}

		t := e.Task.Value
		switch {
		case !e.Task.Exists():
			return nil // a new task arrives with an event
		case e.Valid() && t.Result != nil:
			s.awaitEnd(ctx, id, e.Revision+1)
		case !e.Valid():
			_, err = s.decide(ctx, s.Node, id, func(e shared.Errand) (shared.Txn, error) {
				if e.Valid() {
					return shared.Txn{}, nil
				}
				return e.Withdraw(who)
			})
		case e.Taken():
			// An earlier agent has taken the task. Its call may still take effect within one deadline.
			backoff.Pause(ctx, deadline(e.Call.Value.Deadline))
			var over bool
			over, err = s.finish(ctx, id, t.ID, shared.TaskResult{Lost: true, Failed: &shared.TaskError{
				Code: volume.CodeUnavailable, Message: fmt.Sprintf("the agent of host %q was restarted during the call", s.Node), Retry: volume.RetryBackoff,
			}})
			if over && t.Call == call.ControllerPublish {
				s.overtaken(e.Volume.Value.Volume, t, nil) // the call of the earlier agent may have had an effect
			}
		default:
			err = s.perform(ctx, who, e)
		}
		if err != nil && !errors.Is(err, shared.ErrTaskOver) {
			return err
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the next agent ends the task
		}
	}
}

// awaitEnd waits until the task of this host for a volume, or the announced call, changes. The requester
// deletes a task with a result. If the requester cannot do that, the next change of its call ends the task,
// and this host deletes it.
func (s *Service) awaitEnd(ctx context.Context, id string, from int64) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the watch

	spans := []shared.Span{{Key: shared.TaskKey(s.Node, id)}, {Key: shared.CallKey(id)}}
	for evs := range s.Store.Watch(ctx, spans, from) {
		if len(evs.Changes) > 0 {
			return
		}
	}
	backoff.Pause(ctx, s.Every) // the watch has failed
}

// perform takes a task, makes its call and returns the result.
func (s *Service) perform(ctx context.Context, who shared.Asker, e shared.Errand) error {
	v, t := e.Volume.Value.Volume, e.Task.Value
	v.Shared = true
	id := t.ID

	p, request, err := s.prepare(v, t)
	if err != nil {
		_, err = s.decide(ctx, s.Node, v.ID, func(now shared.Errand) (shared.Txn, error) {
			if now.Task.Value.ID != id {
				return shared.Txn{}, shared.ErrTaskOver
			}
			return now.Decline(who, err.Error())
		})
		return err
	}

	mine := false
	if _, err = s.decide(ctx, s.Node, v.ID, func(now shared.Errand) (shared.Txn, error) {
		if mine = now.Taken() && now.Task.Value.ID == id; mine {
			return shared.Txn{}, nil // an earlier transaction with a lost answer has taken it
		}
		if now.Task.Value.ID != id {
			return shared.Txn{}, shared.ErrTaskOver
		}
		return now.Take(who, deadline(s.View(v.PluginID).ControllerTimeout), time.Now().UTC())
	}); err != nil {
		return err
	}

	answer, err := p.Call(ctx, t.Call, request)
	if err == nil && e.Call.Value.Fence {
		err = s.checkDetached(ctx, v, t) // the host that fences may not be able to ask the driver
	}
	over, ended := s.finish(ctx, v.ID, id, s.result(ctx, t, answer, err))
	if over && t.Call == call.ControllerPublish {
		s.overtaken(v, t, err)
	}
	return ended
}

// checkDetached returns an error if the driver lists its attachments, and still lists the node. The call itself
// has ended.
func (s *Service) checkDetached(ctx context.Context, v volume.Volume, t shared.Task) error {
	err := s.Detached(ctx, v, t.NodeID)
	if err == nil {
		return nil
	}
	return &volume.CallError{Step: string(t.Call), Code: volume.CodeFailedPrecondition, Message: err.Error(), Retry: volume.RetryBackoff, Answered: true}
}

// overtaken passes on a ControllerPublishVolume that was taken over while this host made it. The host
// that took it over has detached the volume, and the call may have attached it again after that.
func (s *Service) overtaken(v volume.Volume, t shared.Task, err error) {
	var ce *volume.CallError
	switch {
	case err == nil:
		s.Overtaken(v.ID, t.Requester, t.NodeID, 0)
	case !errors.As(err, &ce) || ce.Uncertain() && !ce.Unsent:
		s.Overtaken(v.ID, t.Requester, t.NodeID, deadline(s.View(v.PluginID).ControllerTimeout))
	}
}

// prepare returns the client and the request for a call. It fails if this host cannot make the call,
// or cannot resolve all secrets of the volume.
func (s *Service) prepare(v volume.Volume, t shared.Task) (call.Caller, any, error) {
	if view := s.View(v.PluginID); !view.ReadyFor(t.Call) || !view.Info.HasController {
		return nil, nil, errors.New(view.Lacks(v.PluginID, t.Call))
	}
	secrets, err := s.Secrets(v)
	if err != nil {
		return nil, nil, err
	}
	r, err := request(t, v, secrets)
	if err != nil {
		return nil, nil, err
	}

	// Later calls with the same subject must go to the same instance of the controller.
	v.ExternalID = t.Call.Subject(r)
	p, err := s.Plugin(v, t.Call)
	return p, r, err
}

// result returns the result of a call, with its answer sealed to the requester.
func (s *Service) result(ctx context.Context, t shared.Task, answer any, err error) shared.TaskResult {
	failed := func(err error) shared.TaskResult {
		ce := volume.HostError(string(t.Call), err)
		ce.Answered = false
		_ = errors.As(err, &ce)
		return shared.TaskResult{Failed: &shared.TaskError{Code: ce.Code, Message: ce.Message, Retry: ce.Retry, Answered: ce.Answered}}
	}
	if err != nil {
		return failed(err)
	}
	if forms[t.Call].silent {
		return shared.TaskResult{}
	}

	raw, err := json.Marshal(answer)
	if err != nil {
		return failed(err)
	}
	key, err := s.key(ctx, t.Requester)
	if err != nil {
		return failed(err)
	}
	sealed, err := s.Box.Seal(raw, key)
	if err == nil && len(sealed) > shared.MaxTask {
		err = fmt.Errorf("the answer has %d bytes, and a task can carry %d", len(sealed), shared.MaxTask)
	}
	if err != nil {
		return failed(err)
	}
	return shared.TaskResult{Sealed: sealed}
}

// key reads the public key of a host.
func (s *Service) key(ctx context.Context, node string) ([]byte, error) {
	page, err := s.Store.Range(ctx, shared.Span{Key: shared.NodeInfoKey(node)}, 1, 0)
	if err != nil {
		return nil, err
	}
	if len(page.KVs) == 0 {
		return nil, fmt.Errorf("host %q has no public key in the cluster", node)
	}
	info, err := shared.Decode[shared.NodeInfo](page.KVs[0])
	return info.Value.Key, err
}

// finish writes the result of a task, and gives the announced call back. It repeats that until etcd
// has answered, because no other host may make a call for the volume before. The result over reports
// that the task is gone, so the call may have been taken over.
func (s *Service) finish(ctx context.Context, id, task string, r shared.TaskResult) (over bool, err error) {
	for {
		who, err := s.Asker()
		if err == nil {
			_, err = s.decide(ctx, s.Node, id, func(e shared.Errand) (shared.Txn, error) {
				over = e.Task.Value.ID != task
				if over || e.Valid() && e.Task.Value.Result != nil {
					return shared.Txn{}, nil
				}
				return e.Return(who, r)
			})
		}
		if err == nil || errors.Is(err, shared.ErrTaskOver) || ctx.Err() != nil {
			return over || errors.Is(err, shared.ErrTaskOver), err
		}
		backoff.Pause(ctx, s.Every)
	}
}
