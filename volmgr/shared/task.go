package shared

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// Task asks another host to make a controller call, because the requester's plugin has no
// controller. The requester announces the call in calls/<volume> first. The task then passes on this
// announcement, so that a call never has two executors:
//
//	requester: calls/<v> = requester ──► tasks/<executor>/<v>
//	executor:  compare both, calls/<v> = executor ──► CSI call ──► result, calls/<v> = requester
//	requester: reads the result, deletes the task ──► Confirm, or the end of the call
//
// A task is valid as long as calls/<volume> names it. Every other announcement ends the task.
type Task struct {
	ID        string `json:"id"` // unique
	Requester string `json:"requester"`
	Operation string `json:"operation"` // of the announced call

	Call   call.Method `json:"call"`
	NodeID string      `json:"node_id,omitempty"` // only for calls that change an attachment

	// Request is the request of the call in JSON. It has no secrets, because the executor resolves
	// them itself. The executor takes the external id and the volume context from the definition.
	Request json.RawMessage `json:"request,omitempty"`
	Since   time.Time       `json:"since"`

	Result *TaskResult `json:"result,omitempty"`
}

// MaxTask is the maximum length of the request and of the sealed answer of a task, in bytes. Etcd
// accepts about 1.5 MiB in one transaction.
const MaxTask = 256 << 10

// TaskResult is the end of a task.
type TaskResult struct {
	// Declined says why the executor has not made the call. The requester can ask another host.
	Declined string `json:"declined,omitempty"`

	// Failed describes the error of the call. It is nil after a success.
	Failed *TaskError `json:"failed,omitempty"`

	// Lost is set if the executor's agent was restarted during the call, so that the outcome is
	// unknown. Failed describes it.
	Lost bool `json:"lost,omitempty"`

	// Sealed is the answer of the call in JSON, encrypted for the requester. It is empty if the answer
	// of the call has no content.
	Sealed []byte `json:"sealed,omitempty"`
}

// TaskError is the stored form of a volume.CallError.
type TaskError struct {
	Code     string       `json:"code"`
	Message  string       `json:"message"`
	Retry    volume.Retry `json:"retry"`
	Answered bool         `json:"answered"`
}

// Errand contains the keys that decide about one task.
type Errand struct {
	Meta   Entry[Meta]
	Node   Entry[Node] // the host that decides
	Volume Entry[Definition]
	Call   Entry[Call]
	Task   Entry[Task]

	Revision           int64 // of the read
	node, executor, id string
}

// ErrandReads returns the operations that read an Errand for a host.
func ErrandReads(node, executor, id string) []Op {
	return []Op{Get(MetaKey), Get(NodeKey(node)), Get(VolumeKey(id)), Get(CallKey(id)), Get(TaskKey(executor, id))}
}

// ParseErrand decodes the results of the operations from ErrandReads.
func ParseErrand(node, executor, id string, res Result) (Errand, error) {
	e, reads := Errand{node: node, executor: executor, id: id, Revision: res.Revision}, res.Reads
	if len(reads) != len(ErrandReads(node, executor, id)) {
		return e, volume.Errorf(volume.ErrInvalid, "etcd has answered %d reads of the task for volume %q", len(reads), id)
	}

	var errs []error
	e.Meta = entry[Meta](MetaKey, reads[0], &errs)
	e.Node = entry[Node](NodeKey(node), reads[1], &errs)
	e.Volume = entry[Definition](VolumeKey(id), reads[2], &errs)
	e.Call = entry[Call](CallKey(id), reads[3], &errs)
	e.Task = entry[Task](TaskKey(executor, id), reads[4], &errs)
	return e, errors.Join(errs...)
}

// Valid reports whether the announced call still waits for the task.
func (e Errand) Valid() bool {
	return e.Task.Exists() && e.Call.Exists() && e.Call.Value.Task == e.Task.Value.ID
}

// Taken reports whether the executor has taken the task and has not returned the call yet.
func (e Errand) Taken() bool { return e.Valid() && e.Call.Value.Executor == e.executor }

// txn returns a transaction that needs the task and the call as they were read.
func (e Errand) txn(then ...Op) Txn {
	compares := []Compare{Unchanged(e.Meta.KV), Unchanged(e.Node.KV), Unchanged(e.Call.KV), Unchanged(e.Task.KV)}
	return Txn{If: compares, Then: then, Else: ErrandReads(e.node, e.executor, e.id)}
}

// ErrTaskOver means that a task is no longer valid, or has another state than the decision needs.
var ErrTaskOver = volume.Errorf(volume.ErrRefused, "the task has ended, or was taken over")

// Entrust returns the transaction that gives the call which the asking host has announced to the
// executor of the errand.
func (e Errand) Entrust(who Asker, t Task) (Txn, error) {
	if err := CheckRegistered(e.Meta, e.Node, who); err != nil {
		return Txn{}, err
	}
	if e.Valid() && e.Task.Value.ID == t.ID {
		return Txn{}, nil // an earlier transaction with a lost answer has done it
	}

	c := e.Call.Value
	announced := e.Call.Exists() && c.Executor == who.Node && c.Operation == t.Operation
	if !announced || c.Call != t.Call || c.NodeID != t.NodeID {
		return Txn{}, ErrTaskOver
	}

	c.Task = t.ID
	return e.txn(e.Call.Put(c), e.Task.Put(t)), nil
}

// Take returns the transaction by which the executor takes a task. It makes the call only after this
// transaction, with the given deadline.
func (e Errand) Take(who Asker, deadline time.Duration, now time.Time) (Txn, error) {
	if err := CheckRegistered(e.Meta, e.Node, who); err != nil {
		return Txn{}, err
	}
	if !e.Valid() || e.Task.Value.Result != nil || e.Call.Value.Executor != e.Task.Value.Requester {
		return Txn{}, ErrTaskOver
	}

	c := e.Call.Value
	c.Executor, c.Incarnation, c.Since, c.Deadline = who.Node, who.Incarnation, now, deadline
	return e.txn(e.Call.Put(c)), nil
}

// Decline returns the transaction by which the executor refuses a task that it has not taken.
func (e Errand) Decline(who Asker, reason string) (Txn, error) {
	if err := CheckRegistered(e.Meta, e.Node, who); err != nil {
		return Txn{}, err
	}
	if !e.Valid() || e.Task.Value.Result != nil || e.Taken() {
		return Txn{}, ErrTaskOver
	}

	t := e.Task.Value
	t.Result = &TaskResult{Declined: reason}
	return e.txn(e.Task.Put(t)), nil
}

// Return returns the transaction by which the executor ends a task that it has taken. The announced
// call belongs to the requester again.
func (e Errand) Return(who Asker, r TaskResult) (Txn, error) {
	if err := CheckRegistered(e.Meta, e.Node, who); err != nil {
		return Txn{}, err
	}
	if !e.Taken() {
		return Txn{}, ErrTaskOver
	}

	t := e.Task.Value
	t.Result = &r
	return e.txn(e.Call.Put(e.returned()), e.Task.Put(t)), nil
}

// returned returns the announced call after it has come back to the requester. Its incarnation is 0,
// because the requester may have registered again.
func (e Errand) returned() Call {
	c := e.Call.Value
	c.Executor, c.Incarnation = e.Task.Value.Requester, 0
	return c
}

// Withdraw returns the transaction that deletes a task which the executor has not taken, or which
// has a result. An empty transaction means that the task is gone.
func (e Errand) Withdraw(who Asker) (Txn, error) {
	if err := CheckRegistered(e.Meta, e.Node, who); err != nil {
		return Txn{}, err
	}
	if !e.Task.Exists() {
		return Txn{}, nil
	}
	if e.Taken() {
		return Txn{}, ErrTaskOver
	}
	return e.txn(Delete(e.Task.Key)), nil
}
