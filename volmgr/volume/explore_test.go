package volume_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

var deep = flag.Bool("explore.deep", false, "let TestExplore take minutes and visit millions of states")

// TestExplore visits every state that is possible within the budgets below. It combines two claims
// with every known kind of plugin failure, crashes of the agent, and changes of intent. In each
// state, it compares the record with the real mounts and checks the rules in rules_test.go. It also
// checks that the volume reaches the wanted state if no further faults occur.
func TestExplore(t *testing.T) {
	variants := []variant{
		{name: "stage", stage: true},
		{name: "attach and stage", attach: true, stage: true},
		{name: "attach", attach: true},
		{name: "neither"},
		{name: "hollow stage", stage: true, hollow: true},
		{name: "hollow stage of a block device", stage: true, hollow: true, raw: true},
		{name: "stage and bind", stage: true, bind: true},
		{name: "stage and mount", stage: true, bind: true, kept: true},
		{name: "mount alone", bind: true, kept: true},
		{name: "without the plugin, stage and mount", stage: true, bind: true, kept: true, escape: true},
		{name: "stage and own", stage: true, own: true},
		{name: "without the plugin, stage", stage: true, escape: true},
		{name: "without the plugin, attach and stage", attach: true, stage: true, escape: true},
		{name: "without the plugin, neither", escape: true},
		{name: "without the plugin, hollow stage", stage: true, hollow: true, escape: true},
		{name: "without the plugin, stage and bind", stage: true, bind: true, escape: true},
		{name: "expand, attach and stage", attach: true, stage: true, expand: true},
		{name: "expand, neither", expand: true, bind: true},
		{name: "expand, hollow stage", stage: true, hollow: true, expand: true},
		{name: "the host goes down, attach and stage", attach: true, stage: true, goes: true},
		{name: "the host goes down, hollow stage", stage: true, hollow: true, goes: true},
		{name: "the host goes down, neither and bind", bind: true, goes: true},
		{name: "the host goes down, a mount of its own", stage: true, bind: true, kept: true, goes: true},
		{name: "expand offline, attach and stage", attach: true, stage: true, expand: true, offline: true},
		{name: "forced, and registered again, stage", stage: true, again: true},
		{name: "forced, and registered again, attach and stage", attach: true, stage: true, again: true},
		{name: "shared, stage", shared: true, stage: true},
		{name: "shared, attach and stage", shared: true, attach: true, stage: true},
		{name: "shared, attach", shared: true, attach: true},
		{name: "shared, neither", shared: true},
		{name: "shared, neither and bind", shared: true, bind: true},
		{name: "shared, stage and mount", shared: true, stage: true, bind: true, kept: true},
		{name: "shared, hollow stage", shared: true, stage: true, hollow: true},
		{name: "shared, without the plugin, attach and stage", shared: true, attach: true, stage: true, escape: true},
		{name: "shared, without the plugin, stage", shared: true, stage: true, escape: true},
		{name: "shared, the host goes down, attach and stage", shared: true, attach: true, stage: true, goes: true},
		{name: "shared, the host goes down, neither", shared: true, goes: true},
		{name: "shared, trusted, stage", shared: true, trust: true, stage: true},
		{name: "shared, trusted, neither and bind", shared: true, trust: true, bind: true},
		{name: "shared, trusted, attach and stage", shared: true, trust: true, attach: true, stage: true},
		{name: "shared, trusted, controllers elsewhere, stage", shared: true, trust: true, remote: true, stage: true},
		{name: "shared, trusted, the host goes down, stage", shared: true, trust: true, stage: true, goes: true},
		{name: "shared, forced, and registered again, attach and stage", shared: true, attach: true, stage: true, again: true},
	}
	budgets := []budget{
		{faults: 2, crashes: 0, intents: 3},
		{faults: 1, crashes: 1, intents: 3},
		{faults: 0, crashes: 2, intents: 3},
		{faults: 0, crashes: 0, intents: 6},
	}
	if testing.Short() {
		budgets = []budget{{faults: 1, crashes: 1, intents: 2}}
	}
	if *deep {
		budgets = []budget{
			{faults: 3, crashes: 0, intents: 4},
			{faults: 2, crashes: 1, intents: 3},
			{faults: 1, crashes: 2, intents: 3},
			{faults: 0, crashes: 3, intents: 4},
		}
	}
	narrow := []budget{ // smaller budgets, for variants with more kinds of requests
		{faults: 1, crashes: 0, intents: 3},
		{faults: 1, crashes: 1, intents: 2},
		{faults: 0, crashes: 1, intents: 3},
		{faults: 0, crashes: 0, intents: 4},
	}
	if testing.Short() {
		narrow = []budget{{faults: 1, crashes: 0, intents: 2}, {faults: 0, crashes: 1, intents: 2}}
	}
	twice := []budget{ // budgets for variants in which a request creates a second record of the storage
		{faults: 0, crashes: 1, intents: 5},
		{faults: 1, crashes: 1, intents: 3},
		{faults: 1, crashes: 0, intents: 4},
	}
	if testing.Short() {
		twice = twice[:1]
	}
	if *deep {
		twice = []budget{{faults: 1, crashes: 1, intents: 5}, {faults: 0, crashes: 2, intents: 5}}
	}
	cluster := []budget{ // budgets for a shared volume
		{faults: 1, crashes: 0, intents: 2, others: 1},
		{faults: 1, crashes: 1, intents: 1, others: 0},
		{faults: 0, crashes: 1, intents: 2, others: 1},
	}
	if testing.Short() {
		cluster = []budget{{faults: 1, crashes: 0, intents: 1, others: 1}, {faults: 0, crashes: 1, intents: 2, others: 0}}
	}
	if *deep {
		cluster = []budget{
			{faults: 2, crashes: 0, intents: 3, others: 1},
			{faults: 1, crashes: 1, intents: 3, others: 1},
			{faults: 0, crashes: 2, intents: 3, others: 1},
			{faults: 0, crashes: 1, intents: 4, others: 2},
		}
	}
	trusted := []budget{ // budgets for a volume whose hold is used after a boot without an answer
		{faults: 1, crashes: 1, intents: 2, others: 0},
		{faults: 0, crashes: 2, intents: 2, others: 1},
	}
	if testing.Short() {
		trusted = []budget{{faults: 1, crashes: 1, intents: 2, others: 0}}
	}
	if *deep {
		trusted = slices.Concat(cluster, []budget{{faults: 1, crashes: 1, intents: 3, others: 0}})
	}
	brief := []budget{{faults: 0, crashes: 1, intents: 2, others: 1}} // budget for the variants of a trusted hold
	var states, steps atomic.Int64
	t.Cleanup(func() { t.Logf("%d states, %d steps in all", states.Load(), steps.Load()) })
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			budgets := budgets
			if v.again {
				budgets = twice
			}
			if (v.escape || v.own || v.kept || v.expand || v.goes) && !*deep {
				budgets = narrow
			}
			if v.shared {
				budgets = cluster
			}
			if v.trust {
				budgets = trusted
			}
			if v.trust && (v.attach || v.remote || v.goes) && !*deep {
				budgets = brief
			}
			for _, b := range budgets {
				x := &explorer{v: v, seen: map[key]int32{}, calm: map[key]bool{}, apart: map[key]bool{}}
				x.run(t, b)
				t.Logf("%+v: %d states, %d steps, %d ends", b, len(x.nodes), x.steps, len(x.calm))
				states.Add(int64(len(x.nodes)))
				steps.Add(int64(x.steps))
			}
		})
	}
}

// explorer runs one breadth-first search. The first failure that it finds therefore has a shortest
// possible list of events before it.
type explorer struct {
	v     variant
	seen  map[key]int32
	nodes []node
	calm  map[key]bool // states that reach the wanted state if no further faults occur
	apart map[key]bool // states in which the agent does all that it can without the cluster
	steps int

	queue []todo
}

type node struct {
	from  int32
	label label
}

type todo struct {
	s  state
	at int32
}

// label describes one event in the story of a state. The story is the list of all events that lead
// to the state.
type label struct {
	what    string
	action  call.Method
	alloc   string
	how     how
	between intent
}

func (l label) String() string {
	s := l.what
	if l.action != "" {
		s = strings.TrimSpace(fmt.Sprintf("%s %s %s", l.what, l.action, l.alloc)) + " " + l.how.String()
	} else if l.alloc != "" {
		s += " " + l.alloc
	}
	if l.between.what != "" {
		s += fmt.Sprintf(" (meanwhile: %s %s)", l.between.what, allocs[l.between.alloc])
	}
	return s
}

func (x *explorer) run(t *testing.T, b budget) {
	start := state{left: b}
	start.mem.Volume = volume.Volume{ID: "v", PluginID: "p", Capacity: 1, Capabilities: []call.Capability{{Access: call.SingleNodeMultiWriter, Attachment: call.FileSystem}}}
	start.mem.Volume.Shared = x.v.shared
	if x.v.shared {
		start.mem.Volume.Capabilities[0].Access = call.MultiNodeMultiWriter
	}
	if x.v.trust {
		start.mem.Volume.Boot = volume.BootTrustLocal
	}
	start.disk = start.mem
	x.add(start, -1, label{what: "start"})
	for len(x.queue) > 0 {
		now := x.queue[0]
		x.queue = x.queue[1:]
		if bad := x.expand(now.s, now.at); bad != "" {
			t.Fatalf("%s\n%s", bad, x.story(now))
		}
	}
}

func (x *explorer) story(at todo) string {
	var lines []string
	for i := at.at; i >= 0; i = x.nodes[i].from {
		lines = append([]string{"  " + x.nodes[i].label.String()}, lines...)
	}
	return fmt.Sprintf("%s\nrecord: %+v\nclaims: %+v\non disk: %+v\nclaims: %+v\ndebt:   %+v\nclaims: %+v\non disk: %+v\nclaims: %+v\nworld:  %+v\nparked: %v",
		strings.Join(lines, "\n"), at.s.mem.Node, at.s.mem.Claims, at.s.disk.Node, at.s.disk.Claims,
		at.s.debt.mem.Node, at.s.debt.mem.Claims, at.s.debt.disk.Node, at.s.debt.disk.Claims, at.s.w, at.s.parked.keys())
}

// add puts a state into the queue, unless the state was already in the queue before.
func (x *explorer) add(s state, from int32, l label) {
	x.steps++
	s = s.straight()
	k := s.key()
	if _, ok := x.seen[k]; ok {
		return
	}
	at := int32(len(x.nodes))
	x.seen[k] = at
	x.nodes = append(x.nodes, node{from, l})
	x.queue = append(x.queue, todo{s, at})
}

// expand checks a state and adds every state that can follow it. It returns the rule that the state
// violates, or "".
func (x *explorer) expand(s state, at int32) string {
	if bad := forgotten(x.v, s); bad != "" {
		return bad
	}
	if bad := x.settles(s); bad != "" {
		return bad
	}
	if bad := x.alone(s); bad != "" {
		return bad
	}
	if s.w.unmounted(s.mem) && !s.behind {
		return "the claim counts as past, and nobody unmounted its mount"
	}
	x.surroundings(s, at)
	if bad := x.turns(s, at); bad != "" || !s.debt.mem.Leftover {
		return bad
	}
	return x.turns(s.swap(), at)
}

// turns adds the states that can follow the agent's next step on one record. It varies three
// conditions: which parts of the plugin are ready, whether late effects are still possible, and
// which mount hangs.
func (x *explorer) turns(s state, at int32) string {
	var done []volume.Action
	look := func(up serving, o over, hung int) string {
		if o.early(s.w.late) {
			return ""
		}
		if h := s.mem.Node.Hold; o&clusterAway == 0 && h.Unverified && (h.State == volume.Present || s.w.hold != mine) {
			return "" // before the cluster becomes usable, the agent compares its holds
		}
		seen := s.observe(x.v, up, o, hung)
		a := volume.Next(s.mem, seen)
		quiet := o&clusterAway == 0 && seen.WatchOver && seen.AttachmentOver && hung < 0 // checking one of the variations of each state is enough
		if quiet && up == bothUp {
			if bad := misled(s.mem, seen); bad != "" {
				return bad
			}
		}
		if a.RPC() && !up.answers(a.Kind) {
			return fmt.Sprintf("%s is to be sent to a part that is not ready", a.Kind)
		}
		away := o&clusterAway != 0
		if away && !s.mem.Node.Hold.Lost && (stores(a.Kind) || controls(a.Kind)) {
			return fmt.Sprintf("%s is to be made while the cluster is not reachable", a.Kind)
		}
		if a.Kind == volume.Trust && o&clusterSilent == 0 {
			return "the hold is used without an answer of a cluster that answers"
		}
		if !away && a.Kind == volume.Wait && a.Cause == volume.CauseCluster {
			return "it waits for a cluster that is reachable"
		}
		if slices.Contains(done, a) {
			return ""
		}
		done = append(done, a)
		if up >= nodeUp && a.Kind == volume.Wait && a.Cause == volume.CausePlugin {
			return x.idles(s, up, o, hung, a)
		}
		return x.act(s, at, a)
	}
	for _, o := range x.v.overs() {
		for i := range 8 {
			if bad := look(serving(i&1), o, i/2-1); bad != "" {
				return bad
			}
		}
		// In these variations, the node part and the controllers are separate, and one of them is
		// down.
		for i := range 2 {
			if !x.v.attach {
				break // the plugin has no controller calls
			}
			if bad := look(nodeUp+serving(i), o, -1); bad != "" {
				return bad
			}
		}
	}
	return ""
}

// idles checks that the agent, while it waits for one part of the plugin, does not leave out a call
// to the other part. It returns a description of such a call, or "" if there is none.
func (x *explorer) idles(s state, up serving, o over, hung int, wait volume.Action) string {
	a := volume.Next(s.mem, s.observe(x.v, bothUp, o, hung))
	if a.RPC() && up.answers(a.Kind) {
		return fmt.Sprintf("it waits (%s) although %s could be sent", wait.Reason, a.Kind)
	}
	return ""
}

// surroundings adds the states that follow events outside the agent.
func (x *explorer) surroundings(s state, at int32) {
	for _, in := range x.v.intents() {
		if next, changed := s.wish(x.v, in); changed {
			x.add(next, at, label{what: in.what, alloc: allocs[in.alloc]})
		}
	}
	if c := s.mem.Claims[allocs[0]]; x.v.kept && s.w.bound[0].id != 0 && s.left.intents > 0 {
		next := s
		next.left.intents--
		next.behind = s.behind || c.Bound == volume.Present && c.BoundMount.ID == uint64(s.w.bound[0].id)
		next.w.bound[0] = place{}
		x.add(next, at, label{what: "somebody unmounts the bind"})
	}
	if s.w.unmounted(s.mem) {
		x.add(s.reap(true), at, label{what: "the reaper comes"})
	}
	x.hosts(s, at)
	s.w.late.each(func(l late) {
		next := s
		next.w.land(x.v, l, s.fresh())
		x.add(next, at, label{what: fmt.Sprintf("late effect %b", l)})
		next = s
		next.w.late &^= l
		x.add(next, at, label{what: fmt.Sprintf("no late effect %b", l)})
	})
	if s.parked != 0 {
		next := s
		next.parked = 0
		x.add(next, at, label{what: "backoff ends"})
	}
	if s.debt.parked != 0 {
		next := s
		next.debt.parked = 0
		x.add(next, at, label{what: "the debt's backoff ends"})
	}
	if s.w.unseen {
		next := s
		next.w.unseen = false
		x.add(next, at, label{what: "the last user goes"})
	}
	// A commit of another volume also saves the checkpoints of this volume.
	if s.left.crashes > 0 {
		next := s
		next.disk, next.debt.disk = s.mem, s.debt.mem
		x.add(next, at, label{what: "checkpoints saved"})
		ways := map[string]state{"crash": s.crash(volume.Crashed), "reboot": s.crash(volume.Rebooted), "stop and start": s.stop()}
		if s.w.hold == mine && s.left.others > 0 {
			ways["reboot, and another host takes over"] = s.takenOver().crash(volume.Rebooted)
		}
		if s.down {
			ways["the host is down, and up again"] = s.shut()
		}
		for what, next := range ways {
			next.left.crashes--
			x.add(next, at, label{what: what})
		}
	}
	if s.left.faults > 0 {
		x.disasters(s, at)
	}
}

// disasters adds the states that follow the loss or failure of a good mount.
func (x *explorer) disasters(s state, at int32) {
	s.left.faults--
	if s.w.mounted() {
		next := s
		next.w.die()
		x.add(next, at, label{what: "all mounts die"})
	}
	for i := -1; i < len(allocs); i++ {
		if i < 0 && (s.w.stage.id == 0 || x.v.hollow) || i >= 0 && (s.w.target[i].id == 0 || s.w.bound[i].id != 0) {
			continue
		}
		next := s
		next.w.vanish(i)
		x.add(next, at, label{what: fmt.Sprintf("mount %d vanishes", i)})
	}
	if x.v.raw && s.w.staged {
		next := s
		next.w.lose()
		next.lied = true // the plugin still claims that the volume is staged
		x.add(next, at, label{what: "the device is detached"})
	}
}

// act adds the states that can follow one step of the agent.
func (x *explorer) act(s state, at int32, a volume.Action) string {
	switch {
	case a.Kind == volume.Settled && s.blocked():
		return "" // the mounts belong to the other, deregistered record
	case a.Kind == volume.Settled && s.swapped:
		x.add(s.paid(), at, label{what: "the debt is paid"})
		return unsettled(x.v, s)
	case a.Kind == volume.Settled:
		return unsettled(x.v, s)
	case a.Kind == volume.Wait && a.Cause == volume.CauseDown:
		return stays(s)
	case a.Kind == volume.Wait && (a.Cause == volume.CauseForeign || a.Cause == volume.CauseInvalid || a.Reason == ""):
		return fmt.Sprintf("waits for %q: %s", a.Cause, a.Reason)
	case a.Kind == volume.Wait:
		return ""
	case s.parked.keys()[a.Key()]:
		return fmt.Sprintf("%s is tried before its backoff ends", a.Kind)
	}
	if bad := x.mayNot(s, a); bad != "" {
		return bad
	}
	if a.Path == binds[0] && s.w.unmounted(s.mem) {
		return fmt.Sprintf("%s at what somebody unmounted: the claim that lives by it is past", a.Kind)
	}
	for _, h := range fates(x.v, a) {
		if h != ok && s.left.faults == 0 {
			continue
		}
		for _, in := range append([]intent{{}}, x.v.intents()...) {
			if bad := x.outcome(s, at, a, h, in); bad != "" {
				return bad
			}
		}
		if s.left.crashes > 0 && (h == ok || h == failLate) {
			x.dies(s, at, a, h)
		}
	}
	return ""
}

// dies adds the states that can follow a crash of the agent during a step. In some of them, a user
// requests a claim before the crash.
func (x *explorer) dies(s state, at int32, a volume.Action, h how) {
	for _, in := range append([]intent{{}}, x.v.intents()...) {
		next, changed := s, in.what == ""
		if in.what == "claim" {
			next, changed = s.wish(x.v, in)
		}
		if !changed {
			continue
		}
		next.w.do(x.v, a, h, next.fresh())
		next = next.crash(volume.Crashed)
		next.left.crashes--
		x.add(next, at, label{what: "crash during", action: a.Kind, alloc: a.Alloc, how: h, between: in})
	}
}

// mayNot returns the rule that a step would violate, or "".
func (x *explorer) mayNot(s state, a volume.Action) string {
	bad := s.w.broken(x.v, s.mem, a)
	switch {
	case bad != "":
	case a.Kind == call.ControllerUnpublish && !detachKnown(s.disk):
		bad = "made, and after a crash nobody would know"
	case s.blocked() && a.RPC():
		bad = "called before what a forced deregister left of the same storage is undone"
	case s.down && (a.Forward() || a.Kind == volume.Own || a.Kind == volume.Take || a.Kind == volume.Plan || a.Kind == call.ControllerUnpublish || a.Kind == volume.Acquire || a.Kind == volume.Trust || a.Kind == volume.Confirm):
		bad = "done while the host goes down"
	case s.down && a.Kind == volume.Free && s.mem.Claims[a.Alloc].Wanted:
		bad = "a claim is freed that is wanted"
	case a.Kind == call.NodePublish && x.v.stage && !s.w.staged && !s.lied:
		bad = "published while not staged"
	case a.Kind == call.NodeStage && s.undo && !published(s.mem):
		bad = "staged after a failed stage without an unstage"
	case a.Kind == call.NodeExpand && s.refused:
		bad = "asked again for what was refused of this mount"
	case a.Kind == call.ControllerUnpublish && !s.proved:
		bad = "detached without a proof"
	case a.Kind == volume.EndWatch && s.w.late&^(lateExpand|lateStore) != 0:
		bad = "the watch ended before its deadline"
	}
	if bad != "" {
		bad = fmt.Sprintf("%s %s: %s", a.Kind, a.Alloc, bad)
	}
	return bad
}

// outcome adds the state after a step during which a user may have changed the intent. It returns a
// description of an error in the resulting record, or "".
func (x *explorer) outcome(s state, at int32, a volume.Action, h how, in intent) string {
	next := s
	if in.what != "" {
		var changed bool
		if next, changed = s.wish(x.v, in); !changed {
			return ""
		}
	}
	announced := x.v.shared && controls(a.Kind) && s.w.hold == mine
	if x.v.shared && controls(a.Kind) && next.w.hold != mine && !next.mem.Node.Hold.Lost {
		next.mem, _ = volume.LoseHold(next.mem) // the store refuses to announce the call
		next.disk = next.mem
	}
	out := next.w.do(x.v, a, h, next.fresh())
	if announced && next.w.hold != mine {
		out = answerAfterLoss(h)
	}
	if next.w.unmounted(next.mem) && !next.behind {
		return fmt.Sprintf("during %s the claim counts as past, and nobody but the agent unmounted its mount", a.Kind)
	}
	if h != ok {
		next.left.faults--
	}
	next.proved = next.proved && a.Kind != call.NodeStage && a.Kind != call.NodePublish
	switch a.Kind {
	case call.NodeStage:
		next.undo, next.lied = out.Err != nil, h == lie && !next.w.staged
	case call.NodeExpand:
		next.refused = h == final
	case volume.Bind:
		next.behind = next.behind && next.w.bound[0].id == 0
	case volume.Prove:
		next.proved = out.Err == nil
	case call.NodeUnstage:
		next.undo, next.lied = next.undo && out.Err != nil, next.lied && out.Err != nil
	}
	if a.Kind == call.NodeStage && !x.v.hollow || a.Kind == call.NodePublish && (!x.v.stage || x.v.hollow) {
		next.refused = next.refused && out.Err != nil
	}
	if !next.mem.Same(s.mem) {
		next = next.swap() // a user deregistered the volume during the call, so the outcome belongs to the other record
	}
	claims := next.mem.Claims
	next = next.save(a, out)
	x.add(next, at, label{action: a.Kind, alloc: a.Alloc, how: h, between: in})
	for alloc, c := range claims {
		if now := next.mem.Claims[alloc]; s.down && c.Wanted && (!now.Wanted || now.State != c.State) {
			return fmt.Sprintf("after %s %s, as the host goes down, the claim of %s is %+v", a.Kind, a.Alloc, alloc, now)
		}
	}
	for i, alloc := range allocs {
		c := next.mem.Claims[alloc]
		if s.mem.Claims[alloc].State == volume.Pending && c.State == volume.Mounted {
			if x := next.mem.Volume.Expansion; !s.wasTaken() && x.Node > 0 && x.Refused.Step == "" {
				return fmt.Sprintf("after %s the claim of %s is taken, and smaller than its storage", a.Kind, alloc)
			}
			if bad := incomplete(next.w, i, c); bad != "" {
				return fmt.Sprintf("after %s the claim of %s is taken: %s", a.Kind, alloc, bad)
			}
		}
	}
	return ""
}

// wasTaken reports whether any claim on the volume is mounted.
func (s *state) wasTaken() bool {
	return slices.ContainsFunc(s.mem.Ordered(), func(c volume.Claim) bool { return c.State == volume.Mounted })
}

func published(r volume.Record) bool {
	for _, c := range r.Claims {
		if c.Published != volume.Absent {
			return true
		}
	}
	return false
}
