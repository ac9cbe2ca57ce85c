package claims_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// crowd is a host with many clients of one agent. Its plugin checks the rules of CSI.
type crowd struct {
	harness.Recorded
	*apiclient.Client
}

// aWhile is the time limit for each expected event, long enough for a busy host.
const aWhile = time.Minute

func newCrowd(t *testing.T, deadline string) crowd {
	t.Helper()
	c := crowd{Recorded: harness.StartRecorded(t, deadline, nil)}
	c.Client = apiclient.New(c.Recorded.Socket())
	t.Cleanup(c.Close)
	return c
}

// together runs n calls of do concurrently and returns their results.
func together(n int, do func(i int) error) []error {
	var wg sync.WaitGroup
	errs, begin := make([]error, n), make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-begin
			errs[i] = do(i)
		})
	}
	close(begin)
	wg.Wait()
	return errs
}

func (c crowd) claim(id, alloc string, req api.ClaimRequest) (*api.Claim, error) {
	return c.ClaimVolume(context.Background(), id, alloc, req, aWhile)
}

func (c crowd) detach(id, alloc string) error {
	return c.DetachClaim(context.Background(), id, alloc, apiclient.DetachOptions{Wait: aWhile})
}

// only fails the test unless each call succeeded or failed with one of the given codes. It returns
// the number of successful calls.
func (c crowd) only(errs []error, others ...api.Code) (good int) {
	c.T.Helper()
	for i, err := range errs {
		switch code := harness.CodeOf(err); {
		case code == "":
			good++
		case !slices.Contains(others, code):
			c.T.Errorf("caller %d: %s: %v", i, code, err)
		}
	}
	return good
}

// left asserts that the given volumes become free and that no claim or mount remains.
func (c crowd) left(ids ...string) {
	c.T.Helper()
	for _, id := range ids {
		c.Volctl("wait", "--volume", id, "--for", "free", "--timeout", "60s")
	}
	if out := c.Volctl("claim", "list", "-q"); out != "" {
		c.T.Errorf("claims are left:\n%s", out)
	}
	c.ExpectNoMounts()
}

// count asserts the number of calls of each method since a mark.
func (c crowd) count(since int64, want map[string]int) {
	c.T.Helper()
	calls := c.Calls(since)
	for method, n := range want {
		if got := calls.Count(method); got != n {
			c.T.Errorf("%d calls of %s, want %d:\n%s", got, method, n, calls)
		}
	}
}

// TestOneWinner makes 50 parallel claims for a volume that allows one writer per node. One claim
// must succeed, and the errors of the other claims must name the successful alloc.
func TestOneWinner(t *testing.T) {
	c := newCrowd(t, "30s")
	for _, mode := range []string{"single-node-writer", "single-node-single-writer"} {
		c.Register(mode, mode)
		mark := c.Mark()
		errs := together(50, func(i int) error {
			_, err := c.claim(mode, fmt.Sprint("a", i), api.ClaimRequest{})
			return err
		})
		if n := c.only(errs, api.CodeRefused); n != 1 {
			t.Errorf("%s: %d winners", mode, n)
		}
		winner := fmt.Sprint("a", slices.Index(errs, nil))
		for _, err := range errs {
			if err != nil && !strings.Contains(err.Error(), `"`+winner+`"`) {
				t.Errorf("%s: %q has it, and somebody is told %q", mode, winner, err)
			}
		}
		c.ExpectCalls(mark, csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish)
		c.Must(c.detach(mode, winner))
		c.left(mode)
	}
}

// loop claims and detaches a volume several times. If alone is set, no other caller uses the alloc,
// and loop also writes to the mount. Otherwise another caller could detach the claim at any time.
func (c crowd) loop(id, alloc string, rounds int, alone bool) error {
	for range rounds {
		claim, err := c.claim(id, alloc, api.ClaimRequest{})
		if err == nil && alone {
			err = os.WriteFile(filepath.Join(claim.Path, alloc), nil, 0o644)
		}
		if err != nil && (alone || harness.CodeOf(err) != api.CodeRefused) {
			return fmt.Errorf("claim of %q by %q: %w", id, alloc, err)
		}
		if err := c.detach(id, alloc); err != nil && (alone || harness.CodeOf(err) != api.CodeNotFound) {
			return fmt.Errorf("detach of %q by %q: %w", id, alloc, err)
		}
	}
	return nil
}

// written returns the number of files that clients wrote to a volume. It reads them from the
// plugin's storage.
func (c crowd) written(id string) int {
	c.T.Helper()
	dirs, err := filepath.Glob(filepath.Join(c.Config.Base, "volumes", "*"))
	c.Must(err)
	for _, dir := range dirs {
		about, err := os.ReadFile(filepath.Join(dir, "volume.json"))
		c.Must(err)
		if !strings.Contains(string(about), `"ext/`+id+`"`) {
			continue
		}
		files, err := os.ReadDir(filepath.Join(dir, "data"))
		c.Must(err)
		return len(files)
	}
	c.T.Fatalf("the plugin has no volume %q", id)
	return 0
}

// TestLoops runs 100 concurrent loops of claim and detach on one volume, some with the same alloc.
// The agent must never publish a volume that is not staged, unstage a volume that is published, or
// make two calls for the volume at the same time.
func TestLoops(t *testing.T) {
	c := newCrowd(t, "30s")
	c.Register("data", "single-node-multi-writer")
	const loops, allocs, shared = 100, 80, 20 // the last 20 loops use the allocs of the first 20
	c.only(together(loops, func(i int) error {
		return c.loop("data", fmt.Sprint("a", i%allocs), 3, i >= shared && i < allocs)
	}))
	c.left("data")
	if n := c.written("data"); n != allocs-shared {
		t.Errorf("%d files are in the volume, want %d", n, allocs-shared)
	}
}

// TestManyVolumes runs two loops on each of 32 volumes concurrently. Some CSI calls fail, with or
// without their effect.
func TestManyVolumes(t *testing.T) {
	const volumes, each = 32, 2
	c := newCrowd(t, "3s") // timeout of each call, and the agent's wait for late effects
	var ids []string
	for i := range volumes {
		id := fmt.Sprint("v", i)
		ids = append(ids, id)
		c.Register(id, "single-node-multi-writer")
	}
	for _, method := range []string{csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish} {
		c.AddFaults(csitest.Fault{Method: method, Code: codes.Internal, Times: 3},
			csitest.Fault{Method: method, Code: codes.Unknown, Effect: csitest.EffectDone, Times: 3})
	}
	c.only(together(each*volumes, func(i int) error {
		return c.loop(ids[i%volumes], fmt.Sprint("a", i/volumes), 3, true)
	}))
	c.left(ids...)
	for _, id := range ids {
		if n := c.written(id); n != each {
			t.Errorf("%d files are in volume %q, want %d", n, id, each)
		}
	}
}

// TestDetachedTwice checks that two simultaneous detaches of one claim cause each CSI call only
// once.
func TestDetachedTwice(t *testing.T) {
	const rounds = 10
	c := newCrowd(t, "30s")
	c.Register("data", "single-node-multi-writer")
	_, err := c.claim("data", "other", api.ClaimRequest{})
	c.Must(err)
	mark := c.Mark()
	for range rounds {
		_, err := c.claim("data", "a", api.ClaimRequest{})
		c.Must(err)
		// The second detach finds no claim if the first detach is already complete.
		if c.only(together(2, func(int) error { return c.detach("data", "a") }), api.CodeNotFound) == 0 {
			t.Fatal("nobody detached it")
		}
	}
	c.count(mark, map[string]int{csitest.NodePublish: rounds, csitest.NodeUnpublish: rounds, csitest.NodeUnstage: 0})
	mark = c.Mark()
	c.only(together(2, func(int) error { return c.detach("data", "other") }), api.CodeNotFound)
	c.ExpectCalls(mark, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish)
	c.left("data")
}

// TestClaimedManyTimes makes simultaneous claims with the same volume and alloc. Requests with the
// same options share one claim and get the same answer. The agent refuses requests with other
// options.
func TestClaimedManyTimes(t *testing.T) {
	c := newCrowd(t, "30s")
	c.Register("data", "single-node-multi-writer")
	mark := c.Mark()
	answers := make([]*api.Claim, 40)
	errs := together(len(answers), func(i int) (err error) {
		answers[i], err = c.claim("data", "a", api.ClaimRequest{ReadOnly: i%2 == 0})
		return err
	})
	if n := c.only(errs, api.CodeRefused); n != len(errs)/2 {
		t.Errorf("%d calls were answered with the claim, want half of %d", n, len(errs))
	}
	first := answers[slices.Index(errs, nil)]
	for i, got := range answers {
		if errs[i] == nil && *got != *first {
			t.Errorf("caller %d got %+v, another %+v", i, *got, *first)
		}
	}
	c.ExpectCalls(mark, csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish)
	c.Must(c.detach("data", "a"))
	c.left("data")
}

// TestWithdrawnTogether checks many claims that wait for one NodeStageVolume. Some requests time
// out, and some clients disconnect. The agent withdraws the claims of these clients and keeps all
// other claims.
func TestWithdrawnTogether(t *testing.T) {
	const each = 10
	c := newCrowd(t, "30s")
	c.Register("data", "single-node-multi-writer")
	c.AddFaults(csitest.Fault{Method: csitest.NodeStage, Hang: true})
	gone, leave := context.WithCancel(t.Context())
	stay, others := make(chan []error, 1), make(chan []error, 1)
	go func() {
		stay <- together(each, func(i int) error { _, err := c.claim("data", fmt.Sprint("stays", i), api.ClaimRequest{}); return err })
	}()
	c.Await("the call", func() bool { return c.Calls(0).Count(csitest.NodeStage) == 1 })
	go func() {
		others <- together(2*each, func(i int) error {
			if i < each {
				_, err := c.ClaimVolume(gone, "data", fmt.Sprint("goes", i), api.ClaimRequest{}, aWhile)
				return err
			}
			_, err := c.ClaimVolume(context.Background(), "data", fmt.Sprint("late", i), api.ClaimRequest{}, 3*time.Second)
			return err
		})
	}()
	c.Await("those who will go", func() bool { return strings.Count(c.Volctl("claim", "list"), "  goes") == each })
	leave()
	for i, err := range <-others {
		if late := i >= each; late && (harness.CodeOf(err) != api.CodeTimeout || !strings.Contains(err.Error(), "withdrawn")) || !late && !errors.Is(err, context.Canceled) {
			t.Errorf("caller %d: %v", i, err)
		}
	}
	c.Await("the withdrawals", func() bool { return strings.Count(c.Volctl("claim", "list"), "pending") == each })
	c.Must(c.Config.Faults().Clear())
	c.only(<-stay)
	c.Await("the withdrawn claims to go", func() bool { return len(strings.Split(c.Volctl("claim", "list", "-q"), "\n")) == each })
	c.count(0, map[string]int{csitest.NodeStage: 1, csitest.NodePublish: each, csitest.NodeUnstage: 0})
	c.Volctl("volume", "detach", "data", "--all")
	c.left("data")
}

// TestFinalErrorForAll checks an error that no retry can fix. The agent withdraws all waiting
// claims, and each client gets the error.
func TestFinalErrorForAll(t *testing.T) {
	c := newCrowd(t, "30s")
	c.Register("data", "single-node-multi-writer")
	c.AddFaults(csitest.Fault{Method: csitest.NodeStage, Code: codes.InvalidArgument, Message: "no such flavour", Times: -1})
	for i, err := range together(20, func(i int) error {
		_, err := c.claim("data", fmt.Sprint("a", i), api.ClaimRequest{})
		return err
	}) {
		if harness.CodeOf(err) != api.CodeFailed || !strings.Contains(err.Error(), "no such flavour") || !strings.Contains(err.Error(), "withdrawn") {
			t.Errorf("caller %d: %v", i, err)
		}
	}
	c.left("data")
	c.count(0, map[string]int{csitest.NodePublish: 0})
}
