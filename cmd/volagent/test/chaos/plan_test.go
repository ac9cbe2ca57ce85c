package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// A chaos plan lists the requests of each client and the faults that happen meanwhile. The same
// seed always produces the same plan. The scheduler still decides how the steps of different
// clients interleave. Therefore a seed that found a defect may need several runs to reproduce it.

// clientKind is a kind of client request.
type clientKind string

// These are the kinds of client requests.

const (
	doClaim    clientKind = "claim"    // claim a volume, or write to it if it is already claimed
	doDetach   clientKind = "detach"   // detach a claim
	doVerify   clientKind = "verify"   // read back all writes
	doMount    clientKind = "mount"    // volctl mount, write, volctl umount
	doCreate   clientKind = "create"   // create a volume that only this client changes
	doDelete   clientKind = "delete"   // delete a volume that this client created
	doExpand   clientKind = "expand"   // expand a volume that this client created
	doSnapshot clientKind = "snapshot" // create a snapshot and delete it
	doBounce   clientKind = "bounce"   // detach while an undo call is slow, and claim again
	doForce    clientKind = "force"    // deregister --force while the volume is busy, and register it again
	doLazy     clientKind = "lazy"     // detach --without-plugin
	doDrain    clientKind = "drain"    // drain and undrain
	doRun      clientKind = "run"      // run a container that uses a volume
	doStop     clientKind = "stop"     // remove the container
	doLook     clientKind = "look"     // read the node status, the doctor's findings or the volumes
)

// clientWeights sets the frequency of each kind of request. The short run in `make test` omits rows
// whose field bounded is false. The field reason explains why.
var clientWeights = []struct {
	kind    clientKind
	weight  int
	bounded bool
	reason  string
}{
	{doClaim, 30, true, ""},
	{doDetach, 14, true, ""},
	{doVerify, 8, true, ""},
	{doMount, 5, true, ""},
	{doCreate, 6, true, ""},
	{doDelete, 5, true, ""},
	{doExpand, 4, true, ""},
	{doSnapshot, 3, true, ""},
	{doBounce, 10, true, ""},
	{doForce, 8, true, ""},
	{doLazy, 4, true, ""},
	{doDrain, 1, true, ""},
	{doRun, 3, false, "a reference whose end a killed agent missed is dropped after a minute"},
	{doStop, 2, false, "as run"},
	{doLook, 4, true, ""},
}

// trouble is a kind of fault that the run causes while clients send requests.
type trouble string

// These are the kinds of faults.
const (
	killAgent  trouble = "kill agent"
	stopAgent  trouble = "stop agent"
	killRec    trouble = "kill rec"
	killLocal  trouble = "kill local"
	killDocker trouble = "kill dockerd"
	callFails  trouble = "error"        // the call fails and has no effect
	callLies   trouble = "error, done"  // the call fails after its effect
	callSlow   trouble = "slow"         // the answer arrives before the deadline
	callLate   trouble = "late"         // the answer and the effect come after the deadline
	callHangs  trouble = "hung"         // the call never answers and has no effect
	diesAtCall trouble = "dies at call" // the agent or the plugin dies before or after the effect
)

var troubleWeights = []struct {
	kind    trouble
	weight  int
	bounded bool
	reason  string
}{
	{killAgent, 6, true, ""},
	{stopAgent, 2, true, ""},
	{killRec, 4, true, ""},
	{killLocal, 3, true, ""},
	{killDocker, 1, false, "as run"},
	{callFails, 8, true, ""},
	{callLies, 8, true, ""},
	{callSlow, 10, true, ""},
	{callLate, 8, true, ""},
	{callHangs, 3, true, ""},
	{diesAtCall, 5, true, ""},
}

// step is one step of a plan. Its dice determine all other details of the step.
type step[K ~string] struct {
	kind  K
	dice  *rand.Rand
	pause time.Duration // wait before this step
}

// planner produces the steps of one client, or the faults of a run.
type planner[K ~string] struct {
	dice  *rand.Rand
	kinds []K // contains each kind as often as its weight says
	pause time.Duration
}

// newPlanner returns the planner for stream n of the given seed.
func newPlanner[K ~string](seed, n uint64, pause time.Duration, kinds []K) *planner[K] {
	return &planner[K]{dice: rand.New(rand.NewPCG(seed, n)), kinds: kinds, pause: pause}
}

// next returns the next step. Each step has its own dice, so the random numbers that one step uses
// do not change the later steps.
func (p *planner[K]) next() step[K] {
	return step[K]{
		kind:  p.kinds[p.dice.IntN(len(p.kinds))],
		pause: time.Duration(p.dice.Int64N(int64(2 * p.pause))),
		dice:  rand.New(rand.NewPCG(p.dice.Uint64(), p.dice.Uint64())),
	}
}

// clientKinds returns the kinds of requests from which a planner may choose. These are the kinds of
// the short run, all kinds, or only the named kinds.
func clientKinds(all bool, only string) (kinds []clientKind) {
	for _, row := range clientWeights {
		if chosen(string(row.kind), all || row.bounded, only) {
			for range row.weight {
				kinds = append(kinds, row.kind)
			}
		}
	}
	return kinds
}

// troubleKinds returns the kinds of faults from which a planner may choose. It selects them as
// clientKinds does.
func troubleKinds(all bool, only string) (kinds []trouble) {
	for _, row := range troubleWeights {
		if chosen(string(row.kind), all || row.bounded, only) {
			for range row.weight {
				kinds = append(kinds, row.kind)
			}
		}
	}
	return kinds
}

func chosen(kind string, by bool, only string) bool {
	if only == "" {
		return by
	}
	for name := range strings.SplitSeq(only, ",") {
		if name == kind {
			return true
		}
	}
	return false
}

// TestChaosPlan checks that a plan depends only on its seed and its stream. It also checks that a
// plan contains every kind.
func TestChaosPlan(t *testing.T) {
	t.Parallel()
	words := func(seed, stream uint64) string {
		p, text := newPlanner(seed, stream, time.Second, clientKinds(true, "")), ""
		for range 500 {
			s := p.next()
			text += fmt.Sprintln(s.kind, s.pause, s.dice.Uint64())
		}
		return text
	}
	once, again := words(7, 1), words(7, 1)
	if once != again {
		t.Error("the same seed gives another plan")
	}
	if once == words(8, 1) || once == words(7, 2) {
		t.Error("another seed, or client, gives the same plan")
	}
	for _, row := range clientWeights {
		if !strings.Contains(words(7, 1), string(row.kind)) {
			t.Errorf("no %s in 500 commands", row.kind)
		}
		if row.bounded != (row.reason == "") {
			t.Errorf("%s: a row is left out for a reason, and only then", row.kind)
		}
	}
	for _, row := range troubleWeights {
		if row.bounded != (row.reason == "") {
			t.Errorf("%s: a row is left out for a reason, and only then", row.kind)
		}
	}
	if got := clientKinds(false, "force"); len(got) != 8 || got[0] != doForce {
		t.Errorf("only force: %q", got)
	}
}
