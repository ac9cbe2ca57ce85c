package main_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/volagent/volagent/volmgr/csitest"
)

// TestMaxVolumes makes many claims at the same time through a plugin that allows two volumes per
// node. Two claims succeed. The agent refuses the other claims before it sends a call, and the
// error names the two volumes on the host. The next agent refuses them too. A volume that is
// already on the host accepts more claims. After a volume has left the host, another volume can use
// its place.
func TestMaxVolumes(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", func(c *csitest.Config) { c.MaxVolumes = 2 })
	const n = 6
	for i := range n {
		h.register(fmt.Sprint("v", i), "multi-node-multi-writer")
	}
	results := make([]result, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { results[i] = h.try("volume", "claim", fmt.Sprint("v", i), "--alloc", "a", "--timeout", "30s") })
	}
	wg.Wait()
	var in, out []string
	for i, r := range results {
		id := fmt.Sprint("v", i)
		if r.code == 0 {
			in = append(in, id)
			continue
		}
		out = append(out, id)
		if r.code != 4 || !strings.Contains(r.err, `plugin "rec" can have 2 volumes on this host at once, and has 2: `) {
			t.Errorf("the claim of %s ended with %d: %s", id, r.code, r.err)
		}
	}
	if len(in) != 2 {
		t.Fatalf("mounted are %q", in)
	}
	h.kill()
	h.start("rec")
	mark := h.mark()
	if r := h.try("volume", "claim", out[0], "--alloc", "a"); r.code != 4 || !strings.Contains(r.err, strings.Join(in, ", ")) {
		t.Errorf("after a restart a third one ended with %d: %s", r.code, r.err)
	}
	h.expect(mark)
	h.volctl("volume", "claim", in[0], "--alloc", "b")
	if list := h.volctl("plugin", "list"); !strings.Contains(list, "2/2") {
		t.Errorf("the list does not show 2/2:\n%s", list)
	}
	h.volctl("volume", "detach", in[1], "--all")
	h.volctl("volume", "claim", out[0], "--alloc", "a")
	for _, id := range []string{in[0], out[0]} {
		h.volctl("volume", "detach", id, "--all")
	}
}
