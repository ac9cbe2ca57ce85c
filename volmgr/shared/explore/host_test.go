package explore_test

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// The code in this file is the agent of one host, as in packages agent/hold and agent/reconcile. The
// decisions about the volume are those of package volume, and the transactions those of package shared.

// alloc is the user of the volume on each host. The paths are those of its mounts.
const (
	alloc   = "one"
	staging = "/s"
	target  = "/t"
)

// now is the time in all values. No decision under test depends on it.
var now = time.Unix(1000, 0).UTC()

// deadline is that of all controller calls.
const deadline = time.Minute

// variant is a kind of volume, and the proof that its plugin permits.
type variant struct {
	name   string
	attach bool // the volume needs ControllerPublishVolume
	stage  bool
	lists  bool // the driver lists the nodes to which the volume is attached
	fence  plugin.Fence
	least  int // the least number of states that the exploration must find

	// These are further budgets of the quick and of the full form. They have too many states for other variants.
	quick, wide []budget
}

// step is the step of the volume that an agent is making.
type step struct {
	kind    stepKind
	action  volume.Action
	who     shared.Asker // when the step began
	mounted bool
}

// stepKind is the stage of a step.
type stepKind string

// These are the stages of a step that needs the cluster.
const (
	noStep stepKind = ""
	txn    stepKind = "txn"  // its transaction is on its way
	send   stepKind = "send" // the call is announced, and not sent yet
	ended  stepKind = "end"  // the call was refused, and its announcement must end
)

// These are the errors of controller calls.
var (
	errRefused   = &volume.CallError{Step: "step", Code: "FailedPrecondition", Retry: volume.RetryBackoff, Answered: true}
	errUncertain = &volume.CallError{Step: "step", Code: "DeadlineExceeded", Retry: volume.RetryBackoff}
	errAway      = &volume.CallError{Step: "step", Code: volume.CodeHost, Retry: volume.RetryBackoff, Answered: true}
)

func (v variant) info(x int) plugin.Info {
	return plugin.Info{
		ID: "p", Driver: "d", NodeID: nodeIDs[x], HasController: true, HasNode: true,
		Caps: plugin.Caps{Attach: v.attach, Stage: v.stage, List: v.lists, PublishedNodes: v.lists},
	}
}

func (v variant) volume() volume.Volume {
	return volume.Volume{
		ID: id, PluginID: "p", Driver: "d", ExternalID: "e", Shared: true,
		Capabilities: []call.Capability{{Access: call.SingleNodeMultiWriter, Attachment: call.FileSystem}},
	}
}

// observe returns the agent's view of its host.
func (s *state) observe(v variant, x int) volume.Observed {
	h := &s.hosts[x]
	o := volume.Observed{
		Plugin: plugin.View{Known: true, Ready: true, State: "test", Info: v.info(x), ControllerTimeout: deadline},
		Boot:   s.bootID(x), WatchOver: true, AttachmentOver: s.quiet(x),
		Staging: s.sight(x, h.staged, 1), Targets: map[string]volume.Sight{}, Watched: map[string]volume.Sight{},
	}
	if !h.registered {
		o.Cluster = volume.Cluster{Away: "this host is not registered"}
	}
	o.Targets[alloc] = s.sight(x, h.target, 2)
	for _, w := range h.rec.Node.Watches {
		o.Watched[w.Path] = o.Staging
		if w.Path == target {
			o.Watched[w.Path] = o.Targets[alloc]
		}
	}
	return o
}

func (s *state) identity(x int, n uint64) volume.MountIdentity {
	return volume.MountIdentity{Boot: s.bootID(x), ID: n}
}

func (s *state) sight(x int, mounted bool, n uint64) volume.Sight {
	if !mounted {
		return volume.Sight{}
	}
	if s.hosts[x].dead {
		return volume.Sight{Seen: volume.SeenDead, Identity: s.identity(x, n)}
	}
	return volume.Sight{Seen: volume.SeenMount, Identity: s.identity(x, n)}
}

// do makes a step that needs no other host.
func (s *state) do(v variant, x int, a volume.Action) volume.Outcome {
	h := &s.hosts[x]
	reaches := s.attached[x] || !v.attach
	made := func(mounted *bool, n uint64) volume.Outcome {
		if !reaches || h.dead {
			return volume.Outcome{Err: errRefused}
		}
		*mounted = true
		m := s.identity(x, n)
		return volume.Outcome{Mount: &m, Boot: s.bootID(x)}
	}
	switch a.Kind {
	case call.NodeStage:
		return made(&h.staged, 1)
	case call.NodePublish:
		return made(&h.target, 2)
	case call.NodeUnstage, call.NodeUnpublish:
		if h.stuck {
			return volume.Outcome{Err: errRefused}
		}
		h.staged, h.target = h.staged && a.Kind != call.NodeUnstage, h.target && a.Kind != call.NodeUnpublish
	case volume.Prove:
		if h.mounted() {
			s.bad = "the proof of unmount fails"
		}
	case volume.GiveUp: // of a hold that is lost
	case volume.Plan, volume.Doubt, volume.Take, volume.Free, volume.EndWatch:
	default:
		s.bad = fmt.Sprintf("the model does not know the step %s", a.Kind)
	}
	h.dead = h.dead && h.mounted()
	return volume.Outcome{}
}

// clustered reports whether a step needs the cluster.
func clustered(r volume.Record, k call.Method) bool {
	switch k {
	case volume.Acquire, volume.Confirm, call.ControllerPublish, call.ControllerUnpublish:
		return true
	case volume.GiveUp:
		return !r.Node.Hold.Lost
	default:
		return false
	}
}

// next makes steps of the volume until one needs the cluster, and returns that step. The result ok is
// false if no step is due.
func (s *state) next(v variant, x int) (a volume.Action, ok bool) {
	h := &s.hosts[x]
	for range 40 {
		if !h.has() {
			return a, false
		}
		a = volume.Next(h.rec, s.observe(v, x))
		switch {
		case a.Kind == volume.Settled && h.rec.Idle():
			h.rec = volume.Record{}
			return a, false
		case a.Kind == volume.Wait || a.Kind == volume.Settled:
			return a, false
		case clustered(h.rec, a.Kind):
			return a, true
		}

		out := s.do(v, x, a)
		h.rec, _ = volume.Apply(h.rec, a, out)
		if out.Err != nil || s.bad != "" {
			return a, false
		}
	}
	s.bad = "the steps of a volume have no end"
	return a, false
}

// claim adds a claim to a host, if the agent permits that.
func (s *state) claim(v variant, x int) bool {
	h := &s.hosts[x]
	r := h.rec
	if !h.has() {
		r = volume.Record{Volume: v.volume()}
	}
	r, err := volume.Admit(r, volume.Request{
		Alloc: alloc, Operation: fmt.Sprintf("op-%s%d", names[x], h.claims), StagingPath: staging, Target: target,
		Terms: volume.Terms{Owner: volume.Owner{Kind: volume.OwnerNone}},
	}, v.info(x), time.Time{})
	if err != nil || len(r.Claims) == len(h.rec.Claims) {
		return false
	}
	h.rec = r
	h.claims++
	return true
}

// release ends the claim of a host.
func (s *state) release(x int) bool {
	h := &s.hosts[x]
	if !h.wants() {
		return false
	}
	h.rec = must(volume.Detach(h.rec, alloc))
	return true
}

// ask returns the request for a hold.
func (s *state) ask(v variant, x int, who shared.Asker) shared.Ask {
	h := s.hosts[x].rec.Node.Hold
	a := shared.Ask{Asker: who, Operation: h.Operation, Access: h.Access, Reader: h.Reader, Attach: v.attach, Deadline: deadline, Controller: true, Now: now}
	a.NodeID = nodeIDs[x]
	return a
}

// outcome returns the outcome of a step that failed in the cluster, as in agent/hold.
func outcome(err error) volume.Outcome {
	var ce *volume.CallError
	if errors.As(err, &ce) {
		return volume.Outcome{Err: ce}
	}
	passing := errors.Is(err, shared.ErrUnregistered) || errors.Is(err, shared.ErrHoldLost) || errors.Is(err, shared.ErrWentBack)
	return volume.Outcome{Err: errAway, Unsent: passing}
}

// lose records that a host has lost its hold.
func (s *state) lose(x int) {
	h := &s.hosts[x]
	h.rec, _ = volume.LoseHold(h.rec)
}

// shows reports whether the store shows the hold of a host's record.
func (s *state) shows(x int) bool {
	h := s.hosts[x].rec.Node.Hold
	e := get[shared.Hold](s.store, shared.HoldKey(names[x], id))
	return e.Exists() && e.Value.Operation == h.Operation && e.Create == h.Token.Revision
}

// compare compares the hold of a host with its record, as after a change in the store.
func (s *state) compare(v variant, x int) {
	h := &s.hosts[x]
	e := get[shared.Hold](s.store, shared.HoldKey(names[x], id))
	if h.has() {
		h.rec, _ = volume.SeenHold(h.rec, s.shows(x))
	}
	is := h.rec.Node.Hold
	switch {
	case h.has() && is.State == volume.Present && !is.Lost && !s.shows(x):
		if s.meta().Suspended != "" || is.Token.Epoch != s.meta().Epoch {
			break // after a restore, a missing hold proves nothing
		}
		if !s.proven(x, is.Token.Revision) {
			s.bad = fmt.Sprintf("host %s has lost its hold, and the store has no proof", names[x])
		}
		s.lose(x)
	case h.has() && e.Exists() && e.Value.By != "" && e.Value.Operation == is.Operation:
		h.rec, _ = volume.DoubtAttachment(h.rec, e.Value.Operation)
	}
	if !e.Exists() || h.has() && (is.Operation == e.Value.Operation || h.rec.Held()) || s.meta().Suspended != "" {
		return
	}
	h.rec = volume.Unexplained(v.volume(), earlierHold(e.Value), staging)
}

// earlierHold returns a hold that no record explains, as agent/hold does.
func earlierHold(h shared.Hold) volume.EarlierHold {
	return volume.EarlierHold{
		Hold:     volume.Hold{Operation: h.Operation, Access: h.Access, Reader: h.Reader, Since: now},
		Attached: h.Attachment != "", NodeID: h.NodeID, Calling: h.Attachment != "" && h.Attachment != shared.Attached,
	}
}

// proven reports whether a proof names the volume, since a host has got its hold.
func (s *state) proven(x int, since int64) bool {
	for _, kv := range s.store.read(shared.Proofs(names[x]), 0) {
		p := must(shared.Decode[shared.Proof](kv))
		if kv.Mod > since && p.Value.Has(id) {
			return true
		}
	}
	return false
}

// crash ends the agent of a host. If off is set, the host loses its power. The store may still execute
// a transaction that the agent has sent.
func (s *state) crash(x int, off bool) {
	h := &s.hosts[x]
	for _, one := range h.sent {
		if one != nil && one.done == 0 {
			s.net = append(slices.Clone(s.net), *one)
		}
	}
	h.ended = h.ended && !h.up
	h.up, h.registered, h.admitted, h.off = false, false, 0, h.off || off
	h.step, h.clean, h.fence, h.reg, h.sent = step{}, job{}, job{}, registration{}, [actors]*sent{}
	h.who = shared.Asker{}
	h.rec.Node.Proven, h.rec.Node.Hold.Before = false, volume.Kept{}
	if off {
		h.staged, h.target, h.dead, h.stuck = false, false, false, false
	}
}

// start starts the agent of a host, and the host itself.
func (s *state) start(x int) {
	h := &s.hosts[x]
	after := volume.Crashed
	switch {
	case h.off && h.ended:
		after = volume.Shut
	case h.off:
		after = volume.Rebooted
	case h.ended:
		after = volume.Stopped
	}
	if h.off {
		h.boot++
	}
	h.off, h.ended, h.up = false, false, true
	if h.has() {
		h.rec, _ = volume.Loaded(h.rec, after, false)
	}
}
