package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// A chaos plan lists the requests of each client and the faults that happen at the same time. The
// same seed always produces the same plan. However, the clients run concurrently, and the order of
// their steps differs between runs. Therefore a seed that found a defect may need several runs to
// reproduce the defect.

// clientKind is a kind of client request.
type clientKind string

// These are the kinds of client requests.

const (
	doClaim    clientKind = "claim"    // claim a volume, or write to it if it is already claimed
	doDetach   clientKind = "detach"   // detach a claim
	doVerify   clientKind = "verify"   // read back all writes
	doMount    clientKind = "mount"    // volctl mount, write, volctl umount
	doCreate   clientKind = "create"   // create a volume that only this client changes
	doDelete   clientKind = "delete"   // delete a volume that the same client created
	doExpand   clientKind = "expand"   // expand a volume that the same client created
	doSnapshot clientKind = "snapshot" // create and delete a snapshot
	doBounce   clientKind = "bounce"   // detach with a slow undo call, and claim again
	doForce    clientKind = "force"    // deregister a used volume by force, and register it again
	doLazy     clientKind = "lazy"     // detach --without-plugin
	doDrain    clientKind = "drain"    // drain and undrain
	doRun      clientKind = "run"      // run a container that uses a volume
	doStop     clientKind = "stop"     // remove the container
	doLook     clientKind = "look"     // read the node status, the doctor's findings or the volumes
)

// clientWeights sets the frequency of each kind of request. The field bounded tells whether a
// request of this kind takes a limited time. The short run in `make test` omits the other kinds,
// and the field reason explains why.
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

// trouble is a kind of fault that the run injects while clients send requests.
type trouble string

// These are the kinds of faults.
const (
	killAgent  trouble = "kill agent"
	stopAgent  trouble = "stop agent"
	killRec    trouble = "kill rec"
	killLocal  trouble = "kill local"
	killDocker trouble = "kill dockerd"
	callFails  trouble = "error"        // the call fails and has no effect
	callLies   trouble = "error, done"  // the call takes effect but returns an error
	callSlow   trouble = "slow"         // the answer is slow but arrives before the deadline
	callLate   trouble = "late"         // the answer and the effect come only after the deadline
	callHangs  trouble = "hung"         // the call never answers and has no effect
	diesAtCall trouble = "dies at call" // a call kills the agent or the plugin
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

// step is one step of a plan. Its random source dice determines all other details of the step.
type step[K ~string] struct {
	kind  K
	dice  *rand.Rand
	pause time.Duration // time to wait before this step
}

// planner produces either the steps of one client or the faults of a run.
type planner[K ~string] struct {
	dice  *rand.Rand
	kinds []K // each kind occurs in the slice as often as its weight
	pause time.Duration
}

// newPlanner returns a planner whose random numbers depend only on the seed and the stream number
// n.
func newPlanner[K ~string](seed, n uint64, pause time.Duration, kinds []K) *planner[K] {
	return &planner[K]{dice: rand.New(rand.NewPCG(seed, n)), kinds: kinds, pause: pause}
}

// next returns the next step. Each step has its own random source, so the number of random values
// that one step uses does not change the later steps.
func (p *planner[K]) next() step[K] {
	return step[K]{
		kind:  p.kinds[p.dice.IntN(len(p.kinds))],
		pause: time.Duration(p.dice.Int64N(int64(2 * p.pause))),
		dice:  rand.New(rand.NewPCG(p.dice.Uint64(), p.dice.Uint64())),
	}
}

// clientKinds returns the kinds of requests from which a planner may choose. It returns only the
// named kinds if only is not empty, all kinds if all is true, and otherwise the kinds of the short
// run.
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

// troubleKinds returns the kinds of faults from which a planner may choose. The parameters have the
// same meaning as those of clientKinds.
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

// TestChaosPlan checks that a plan depends only on its seed and its stream number, and that a plan
// contains every kind of step.
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
