package reconcile_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// storm simulates one host and one plugin with several volumes. Every operation can fail. The storm
// knows the real mounts, independent of the records. It stores a description of the first step that
// breaks a rule.
type storm struct {
	attach, stage, bind bool
	growth
	pool

	mu     sync.Mutex
	fates  []fate // the fates of the next calls; all later calls succeed
	next   uint64 // id of the mount that was made last
	boots  int
	life   int // the plugin's incarnation; when it changes, the running calls end
	ready  bool
	agent  int // the agent's incarnation
	mounts map[string]piece
	// which volumes are attached or staged, such as "attached v" and "staged v"
	done map[string]bool
	// number of calls that may still mount, by the plugin's life and the volume
	pending map[string]int
	// number of calls that may still unmount, by the plugin's life and the path
	undoing map[string]int
	// number of calls that may still connect or disconnect storage, by kind and volume
	cloud   map[string]int
	running map[string]int // number of running steps, by agent and volume
	commits int            // how many of the next commits fail
	mem     map[string]volume.Record
	disk    map[string]volume.Record
	looks   int
	odd     time.Duration
	steps   []string
	broken  string
}

// piece is a simulated mount.
type piece struct {
	id   uint64
	dead bool
	bare bool // the mount shows the agent's own directory instead of the volume
	hung bool
}

// fate determines how a call ends.
type fate int

const (
	goes         fate = iota
	refused           // the call is refused without an effect, and may be retried
	final             // the call is refused without an effect, until something changes
	failed            // the error does not say whether the call took effect; it did not
	failedDone        // an error, although the call has taken effect
	failedLater       // an error, and the call takes effect later
	expired           // no answer within the deadline, and no effect
	expiredLater      // no answer within the deadline, but the call takes effect later
	lied              // an answer of OK, but no effect
)

// callTime is the duration of a call. callLimit is its deadline.
const (
	callTime  = 20 * time.Millisecond
	callLimit = 2 * time.Second
)

func newStorm(attach, stage, bind bool, f []fate) *storm {
	return &storm{
		attach: attach, stage: stage, bind: bind, fates: f, life: 1, ready: true,
		mounts: map[string]piece{}, done: map[string]bool{}, pending: map[string]int{}, running: map[string]int{},
		undoing: map[string]int{}, cloud: map[string]int{},
		mem: map[string]volume.Record{}, disk: map[string]volume.Record{},
		pool: pool{keys: map[string]poolKey{}},
	}
}

func stagingOf(id string) string       { return "/s/" + id }
func targetOf(id, alloc string) string { return "/t/" + alloc + "/" + id }
func (s *storm) boot() string          { return fmt.Sprint("boot ", s.boots) }

func (s *storm) breaks(format string, args ...any) {
	if s.broken == "" {
		s.broken = fmt.Sprintf(format, args...)
	}
}

func (s *storm) mount(path string, bare bool) {
	if s.mounts[path].id == 0 {
		s.next++
		s.mounts[path] = piece{id: s.next, bare: bare}
	}
}

// under returns the paths at which a volume is mounted. If targets is true, it returns only the
// targets.
func (s *storm) under(id string, targets bool) (paths []string) {
	for path := range s.mounts {
		if strings.HasSuffix(path, "/"+id) && (!targets || strings.HasPrefix(path, "/t/")) {
			paths = append(paths, path)
		}
	}
	return paths
}

// View returns the state of the plugin.
func (s *storm) View(string) plugin.View {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := plugin.View{Known: true, Ready: s.ready, State: "a state", Incarnation: uint64(s.life), CallTimeout: callLimit, ControllerTimeout: callLimit}
	v.Info = s.info()
	return v
}

// session gives one agent process access to the storm. After a crash, the agent's session can no
// longer write.
type session struct {
	*storm
	agent int
}

func (s session) Volume(id string) (volume.Record, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.mem[id]
	return r, ok && s.agent == s.storm.agent
}

func (s session) Volumes() []volume.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.agent != s.storm.agent {
		return nil
	}
	return slices.Collect(maps.Values(s.mem))
}

func (s session) Save(_ context.Context, id string, fn func(volume.Record) (volume.Record, volume.Saving)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.mem[id]; ok && s.agent == s.storm.agent {
		next, saving := fn(r)
		if s.mem[id] = next; saving == volume.SaveFirst {
			return s.commit()
		}
	}
	return nil
}

func (s session) Intend(_ context.Context, id string, fn func(volume.Record) volume.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.mem[id]
	if !ok || s.agent != s.storm.agent {
		return nil
	}
	if err := s.commit(); err != nil {
		return err
	}
	s.mem[id] = fn(r)
	s.disk[id] = s.mem[id]
	return nil
}

// commit writes all records to disk, or fails.
func (s *storm) commit() error {
	if s.commits > 0 {
		s.commits--
		return errFull
	}
	s.disk = maps.Clone(s.mem)
	return nil
}

func (s *storm) sight(path string) volume.Sight {
	switch p := s.mounts[path]; {
	case p.id == 0:
		return volume.Sight{}
	case p.hung:
		return volume.Sight{Seen: volume.SeenHung, Detail: "no answer"}
	case p.dead:
		return volume.Sight{Seen: volume.SeenDead, Identity: volume.MountIdentity{ID: p.id}}
	default:
		return volume.Sight{Seen: volume.SeenMount, Identity: volume.MountIdentity{ID: p.id}}
	}
}

func (s *storm) Observe(_ context.Context, r volume.Record, _ volume.Glimpse) volume.Observed {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	o := volume.Observed{
		Boot: s.boot(), Staging: s.sight(r.Node.StagingPath),
		Targets: map[string]volume.Sight{}, Binds: map[string]volume.Sight{}, Watched: map[string]volume.Sight{},
	}
	for alloc, c := range r.Claims {
		o.Targets[alloc] = s.sight(c.Target)
		if c.At != "" {
			o.Binds[alloc] = s.sight(c.At)
		}
	}
	for _, w := range r.Node.Watches {
		o.Watched[w.Path] = s.sight(w.Path)
	}
	return o
}

// Do performs a step and lets it end as its fate says. A call that makes something takes effect
// when the call ends, even if the agent no longer waits for it. A call that undoes something takes
// effect at once.
func (s session) Do(ctx context.Context, r volume.Record, a volume.Action, _ plugin.View) volume.Outcome {
	id := r.Volume.ID
	s.mu.Lock()
	if s.agent != s.storm.agent {
		s.mu.Unlock()
		return failedWith("Canceled", volume.RetryBackoff, false)
	}
	key := fmt.Sprint(s.agent, id)
	if s.running[key]++; s.running[key] > 1 && a.Kind != volume.Free {
		s.breaks("two steps of %q at once", id)
	}
	s.steps = append(s.steps, fmt.Sprintf("%s %s %s", a.Kind, id, a.Alloc))
	if why := s.rule(r, a); why != "" {
		s.breaks("%s of %q for %q: %s", a.Kind, id, a.Alloc, why)
	}
	f := goes
	if (a.RPC() || stores(a)) && len(s.fates) > 0 {
		f, s.fates = s.fates[0], s.fates[1:]
	}
	if stores(a) {
		defer s.mu.Unlock()
		s.running[key]--
		return s.transact(r, a, f)
	}
	if attaches(a) && s.away(s.agent) {
		defer s.mu.Unlock()
		s.running[key]--
		out := failedWith("Unavailable", volume.RetryBackoff, false) // the call cannot be announced
		out.Unsent = true
		return out
	}
	answer := s.call(id, a, f)
	s.mu.Unlock()

	var out volume.Outcome
	if a.RPC() {
		select {
		case out = <-answer:
		case <-time.After(callLimit):
			out = failedWith("DeadlineExceeded", volume.RetryBackoff, false)
		case <-ctx.Done():
			out = failedWith("Canceled", volume.RetryBackoff, false)
		}
	} else {
		out = <-answer
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[key]--
	return out
}

func failedWith(code string, retry volume.Retry, answered bool) volume.Outcome {
	return volume.Outcome{Err: &volume.CallError{Step: "step", Code: code, Message: "a fault", Retry: retry, Answered: answered}}
}

// call starts a step. It returns a channel, which receives the answer if the fate includes an
// answer. The caller holds mu.
func (s *storm) call(id string, a volume.Action, f fate) <-chan volume.Outcome {
	answer := make(chan volume.Outcome, 1)
	if !a.RPC() {
		answer <- s.effect(id, a)
		return answer
	}
	if f == lied && attaches(a) {
		f = failedDone // an agent cannot detect an OK without an effect for these calls
	}
	if f == failedLater && !a.Forward() && !attaches(a) {
		f = expiredLater // an undo call takes no effect after its answer
	}
	switch f {
	case refused:
		answer <- failedWith("FailedPrecondition", volume.RetryBackoff, true)
	case final:
		answer <- failedWith("InvalidArgument", volume.RetryChange, true)
	case failed:
		answer <- failedWith("Internal", volume.RetryBackoff, true)
	case failedLater:
		answer <- failedWith("Internal", volume.RetryBackoff, true)
		s.later(id, a, callLimit*3/4, 0, nil)
	case expired:
	case expiredLater:
		// The effect comes at most one call deadline after the agent gave up or crashed.
		s.later(id, a, callLimit*3/4, callLimit, nil)
	case lied:
		out := volume.Outcome{Boot: s.boot()}
		// except for NodeStage, the agent notices in the mount table that nothing was mounted
		if a.Kind != call.NodeStage {
			out = failedWith(volume.CodeUnverified, volume.RetryBackoff, true)
		}
		answer <- out
	default:
		var undone volume.Outcome
		if !a.Forward() {
			undone = s.effect(id, a)
		}
		s.later(id, a, callTime, 0, func(out volume.Outcome) {
			if !a.Forward() {
				out = undone
			}
			if f == failedDone {
				out = failedWith("Internal", volume.RetryBackoff, true)
			}
			answer <- out
		})
	}
	return answer
}

// later makes a call take effect after a delay, which is the argument after. If the agent is still
// alive then, later waits for the additional delay more, because a plugin continues after a crash
// of the agent. If answer is set, later calls it with the outcome at the time of the effect. In
// this case, an undo call has already taken effect. The caller holds mu.
func (s *storm) later(id string, a volume.Action, after, more time.Duration, answer func(volume.Outcome)) {
	life, agent, token := s.life, s.agent, s.keys[id].token
	was := s.mounts[a.Path].id
	at, key := s.pending, fmt.Sprint(s.life, id)
	switch {
	case attaches(a):
		at, key = s.cloud, fmt.Sprint(a.Kind, id)
	case a.Kind == call.ControllerExpand, a.Kind == call.NodeExpand:
		key = "expansion of " + id // it neither mounts nor unmounts
	case !a.Forward():
		at, key = s.undoing, fmt.Sprint(s.life, a.Path)
	}
	at[key]++
	var land func()
	land = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		// the storage system continues such a call without the plugin
		lives := s.life == life || attaches(a)
		if more > 0 && s.agent == agent && lives {
			time.AfterFunc(more, land)
			more = 0
			return
		}
		if at[key]--; !lives {
			return // the call ended together with the plugin process
		}
		if a.Kind == call.ControllerPublish && s.keys[id].token != token {
			return // the hold is lost, and the next holder undoes the call
		}
		var out volume.Outcome
		if a.Forward() || answer == nil {
			if now := s.mounts[a.Path].id; !a.Forward() && now != was && s.relied(id, now) && a.Kind != call.NodeExpand {
				s.breaks("an earlier %s took away what was mounted since at %s", a.Kind, a.Path)
			}
			if a.Kind == call.ControllerUnpublish && len(s.under(id, false)) > 0 {
				s.breaks("an earlier %s detached what is mounted", a.Kind)
			}
			out = s.effect(id, a)
		}
		if answer != nil {
			answer(out)
		}
	}
	// The small addition ensures that no two events have the same time.
	s.odd++
	time.AfterFunc(after+s.odd, land)
}

// attaches reports whether a step is a ControllerPublish or a ControllerUnpublish.
func attaches(a volume.Action) bool {
	return a.Kind == call.ControllerPublish || a.Kind == call.ControllerUnpublish
}

// relied reports whether the record of a volume contains the given mount.
func (s *storm) relied(id string, mount uint64) bool {
	is := func(m *volume.MountIdentity) bool { return m != nil && m.ID == mount }
	r := s.mem[id]
	for _, c := range r.Claims {
		if is(c.Mount) {
			return true
		}
	}
	return is(r.Node.Mount)
}

// effect carries out the effect of a step. The caller holds mu.
func (s *storm) effect(id string, a volume.Action) volume.Outcome {
	shown := func() volume.Outcome {
		if p := s.mounts[a.Path]; p.dead || p.bare || p.hung {
			out := failedWith(volume.CodeUnverified, volume.RetryBackoff, true)
			out.StageSuspect = p.bare
			return out
		}
		return volume.Outcome{Mount: &volume.MountIdentity{ID: s.mounts[a.Path].id}, Boot: s.boot()}
	}
	switch a.Kind {
	case call.ControllerExpand, call.NodeExpand:
		return s.expanded(id, a)
	case call.ControllerPublish, call.ControllerUnpublish:
		s.done["attached "+id] = a.Forward()
	case call.NodeStage:
		s.done["staged "+id] = true
		s.mount(a.Path, false)
		return shown()
	case call.NodeUnstage:
		s.done["staged "+id] = false
		delete(s.mounts, a.Path)
	case call.NodePublish:
		s.mount(a.Path, s.stage && !s.done["staged "+id])
		return shown()
	case volume.Bind:
		s.mount(a.Path, false)
		return shown()
	case call.NodeUnpublish, volume.Unbind:
		delete(s.mounts, a.Path)
	case volume.Prove:
		if len(s.under(id, false)) > 0 {
			return failedWith(volume.CodeHost, volume.RetryBackoff, true)
		}
	}
	return volume.Outcome{}
}
