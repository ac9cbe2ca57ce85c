package task

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// Remote is a call.Caller that lets another host make the controller calls for one shared volume.
// The caller must have announced the call in the cluster.
type Remote struct {
	*Service
	Volume volume.Volume
}

// ResolvesSecrets reports that the executor resolves the secrets of the volume itself.
func (Remote) ResolvesSecrets() bool { return true }

// Call asks one host after the other to make the call, until one of them has taken it.
func (r Remote) Call(ctx context.Context, m call.Method, request any) (any, error) {
	t, err := r.task(m, request)
	if err != nil {
		return nil, err
	}

	declined := ""
	for _, executor := range r.executors(r.Volume) {
		t.ID = rand.Text() // a task of an earlier executor is then not valid any more
		result, err := r.ask(ctx, executor, t)
		if err != nil {
			return nil, err
		}
		if result.Declined == "" {
			return r.answer(m, executor, result)
		}
		declined += fmt.Sprintf("; host %q: %s", executor, result.Declined)
	}

	return nil, &volume.CallError{
		Step: string(m), Code: volume.CodeNoExecutor, Retry: volume.RetryBackoff, Answered: true, Unsent: true,
		Message: fmt.Sprintf("no live host runs a controller of driver %s that takes the call%s", r.Volume.Driver, declined),
	}
}

// task returns the task for a call. The node id comes from the request.
func (r Remote) task(m call.Method, request any) (shared.Task, error) {
	unsent := func(code, format string, args ...any) error {
		return &volume.CallError{Step: string(m), Code: code, Message: fmt.Sprintf(format, args...), Retry: volume.RetryChange, Answered: true, Unsent: true}
	}
	t := shared.Task{Requester: r.Node, Call: m, Since: time.Now().UTC()}
	f, ok := forms[m]
	if !ok {
		return t, unsent(volume.CodeUnimplemented, "other hosts make no such call")
	}

	switch q := request.(type) {
	case call.ControllerPublishRequest:
		t.NodeID = q.NodeID
	case call.ControllerUnpublishRequest:
		t.NodeID = q.NodeID
	}
	raw, err := f.pack(request)
	switch {
	case err != nil:
		return t, unsent(volume.CodeInvalidArgument, "cannot write the request for another host: %v", err)
	case len(raw) > shared.MaxTask:
		return t, unsent(volume.CodeInvalidArgument, "the request has %d bytes, and other hosts accept %d", len(raw), shared.MaxTask)
	}

	t.Request = raw
	return t, nil
}

// answer returns the answer of a call that another host has made.
func (r Remote) answer(m call.Method, executor string, result shared.TaskResult) (any, error) {
	if f := result.Failed; f != nil {
		return nil, &volume.CallError{Step: string(m), Code: f.Code, Message: f.Message, Retry: f.Retry, Answered: f.Answered, Lost: result.Lost}
	}
	if forms[m].silent {
		return call.Nothing{}, nil
	}

	raw, err := r.Box.Open(result.Sealed)
	if err != nil {
		return nil, unknown(m, fmt.Sprintf("cannot read the result of host %q: %v", executor, err))
	}
	got, err := forms[m].answer(raw)
	if err != nil {
		return nil, unknown(m, fmt.Sprintf("cannot read the result of host %q: %v", executor, err))
	}
	return got, nil
}

// unknown returns the error of a call that may have been made, and may still take effect.
func unknown(m call.Method, message string) *volume.CallError {
	return &volume.CallError{Step: string(m), Code: volume.CodeUnavailable, Message: message, Retry: volume.RetryBackoff}
}

// lost returns the error of a call whose executor is gone. Another host can repeat the call.
func lost(m call.Method, executor string) error {
	err := unknown(m, fmt.Sprintf("host %q was making the call, and is gone", executor))
	err.Lost = true
	return err
}

// ask gives the task to one host, and waits for the result.
func (r Remote) ask(ctx context.Context, executor string, t shared.Task) (shared.TaskResult, error) {
	who, err := r.Asker()
	if err != nil {
		return shared.TaskResult{}, unknown(t.Call, err.Error())
	}

	id := r.Volume.ID
	e, err := r.decide(ctx, executor, id, func(e shared.Errand) (shared.Txn, error) {
		t.Operation = e.Call.Value.Operation
		return e.Entrust(who, t)
	})
	if err != nil {
		return shared.TaskResult{}, unknown(t.Call, fmt.Sprintf("cannot ask host %q to make the call: %v", executor, err))
	}

	w := wait{Remote: r, executor: executor, task: t, begun: time.Now(), deadline: r.timeout(executor, r.Volume)}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	events := r.awake(watching, executor, id, e.Revision+1)
	for {
		result, done, err := w.look(ctx)
		if done || err != nil {
			return result, err
		}

		select {
		case <-ctx.Done():
			return result, unknown(t.Call, ctx.Err().Error())
		case <-events:
		case <-time.After(r.Every):
		}
	}
}

// awake returns a channel that receives a value after each change of a task.
func (s *Service) awake(ctx context.Context, executor, id string, from int64) <-chan struct{} {
	changed := make(chan struct{}, 1)
	spans := []shared.Span{{Key: shared.TaskKey(executor, id)}, {Key: shared.CallKey(id)}, {Key: shared.LiveKey(executor)}}
	go func() {
		for range s.Store.Watch(ctx, spans, from) {
			select {
			case changed <- struct{}{}:
			default: // the last value has not been received yet
			}
		}
	}()

	return changed
}

// wait is the wait for one executor.
type wait struct {
	Remote
	executor string
	task     shared.Task
	deadline time.Duration

	begun time.Time
	gone  time.Time // since when the executor is not alive; zero while it is
}

// look reads the state of the task, and acts on it. The result done reports that the wait has ended.
func (w *wait) look(ctx context.Context) (result shared.TaskResult, done bool, err error) {
	e, err := w.read(ctx, w.executor, w.Volume.ID)
	if err != nil {
		return result, false, ctx.Err() // the wait continues after an outage, because only the cluster knows the outcome
	}

	page, err := w.Store.Range(ctx, shared.Span{Key: shared.LiveKey(w.executor)}, 1, 0)
	alive := err != nil || len(page.KVs) > 0
	switch {
	case alive:
		w.gone = time.Time{}
	case w.gone.IsZero():
		w.gone = time.Now()
	}

	ours := e.Valid() && e.Task.Value.ID == w.task.ID
	switch {
	case !ours:
		return result, true, lost(w.task.Call, w.executor)
	case e.Task.Value.Result != nil:
		return *e.Task.Value.Result, true, w.withdraw(ctx)
	case e.Taken() && !w.gone.IsZero() && time.Since(w.gone) >= max(w.deadline, e.Call.Value.Deadline):
		return result, false, w.reclaim(ctx, e.Call.Value)
	case !e.Taken() && (!alive || time.Since(w.begun) >= w.Take):
		err := w.withdraw(ctx)
		if errors.Is(err, shared.ErrTaskOver) {
			return result, false, nil // the executor has just taken the task
		}
		return shared.TaskResult{Declined: "it has not taken the call in time"}, err == nil, err
	default:
		return result, false, nil
	}
}

// withdraw deletes the task.
func (w *wait) withdraw(ctx context.Context) error {
	who, err := w.Asker()
	if err != nil {
		return nil //nolint:nilerr // the next announced call of the volume ends the task
	}

	_, err = w.decide(ctx, w.executor, w.Volume.ID, func(e shared.Errand) (shared.Txn, error) {
		if e.Task.Value.ID != w.task.ID {
			return shared.Txn{}, nil
		}
		return e.Withdraw(who)
	})
	if err != nil && !errors.Is(err, shared.ErrTaskOver) {
		w.Log.Warn("cannot delete a task in the cluster; the next cleaning deletes it", "volume", w.Volume.ID, "executor", w.executor, "error", err)
		return nil
	}
	return err
}

// reclaim takes the call back from an executor that is gone. A call that changes no attachment only
// ends, because the definition has its intent.
func (w *wait) reclaim(ctx context.Context, c shared.Call) error {
	who, err := w.Asker()
	if err != nil {
		return nil //nolint:nilerr // the next look tries again
	}

	res, err := w.Store.Do(ctx, shared.Txn{Then: shared.OrphanReads(w.Node, w.Volume.ID, c)})
	if err != nil {
		return nil //nolint:nilerr // the next look tries again
	}
	o, err := shared.ParseOrphan(w.Node, w.Volume.ID, c, res)
	if err != nil {
		return unknown(w.task.Call, err.Error())
	}
	txn, err := o.Reclaim(who)
	if !attaches(c.Call) {
		txn, err = o.TakeOverCall(who, time.Now().UTC())
	}
	if err != nil {
		return nil //nolint:nilerr // the executor is back, or another host has ended the call
	}

	w.Log.Warn("the host that was making a controller call is gone; the outcome of the call is unknown", "volume", w.Volume.ID, "host", w.executor, "call", c.Call)
	_, _ = shared.DoSure(ctx, w.Store, txn) // the next look sees the outcome
	return nil
}
