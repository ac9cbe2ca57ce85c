package claims_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// TestMaxVolumes makes many claims at the same time through a plugin that allows two volumes per
// node. Two claims succeed. The agent refuses the other claims before it sends a call, and the
// error names the two volumes on the host. The next agent refuses these claims too. A volume that
// is already on the host accepts more claims. After one volume has left the host, the agent can
// mount another volume.
func TestMaxVolumes(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", func(c *csitest.Config) { c.MaxVolumes = 2 })
	const n = 6
	for i := range n {
		h.Register(fmt.Sprint("v", i), "multi-node-multi-writer")
	}
	results := make([]harness.Result, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { results[i] = h.Try("volume", "claim", fmt.Sprint("v", i), "--alloc", "a", "--timeout", "30s") })
	}
	wg.Wait()
	var in, out []string
	for i, r := range results {
		id := fmt.Sprint("v", i)
		if r.Code == 0 {
			in = append(in, id)
			continue
		}
		out = append(out, id)
		if r.Code != 4 || !strings.Contains(r.Err, `plugin "rec" can have 2 volumes on this host at once, and has 2: `) {
			t.Errorf("the claim of %s ended with %d: %s", id, r.Code, r.Err)
		}
	}
	if len(in) != 2 {
		t.Fatalf("mounted are %q", in)
	}
	h.Kill()
	h.Start("rec")
	mark := h.Mark()
	if r := h.Try("volume", "claim", out[0], "--alloc", "a"); r.Code != 4 || !strings.Contains(r.Err, strings.Join(in, ", ")) {
		t.Errorf("after a restart a third one ended with %d: %s", r.Code, r.Err)
	}
	h.ExpectCalls(mark)
	h.Volctl("volume", "claim", in[0], "--alloc", "b")
	if list := h.Volctl("plugin", "list"); !strings.Contains(list, "2/2") {
		t.Errorf("the list does not show 2/2:\n%s", list)
	}
	h.Volctl("volume", "detach", in[1], "--all")
	h.Volctl("volume", "claim", out[0], "--alloc", "a")
	for _, id := range []string{in[0], out[0]} {
		h.Volctl("volume", "detach", id, "--all")
	}
}
