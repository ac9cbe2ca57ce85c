package main_test

import (
	"fmt"
	"os"
	"slices"
	"testing"
)

// TestTimeNamespace starts an agent in another time namespace. The agent must recognize that the
// processes that own claims are alive. The next agent, outside of that namespace, must recognize
// this too.
func TestTimeNamespace(t *testing.T) {
	own, err := os.Readlink("/proc/self/ns/time")
	if err != nil {
		t.Skip("this kernel has no time namespaces")
	}
	h := newRecorded(t, "10s", nil)
	h.register("a", "single-node-writer")
	h.register("b", "single-node-writer")
	one, two := newSleeper(t, ""), newSleeper(t, "")
	h.volctl("volume", "claim", "a", "--alloc", "one", "--owner", one.owner())
	mounts, plugin := h.mounts(), h.pluginPID("rec")
	h.kill()
	h.wrap = []string{"unshare", "--time", "--fork", "--kill-child", "--boottime", "100000"}
	h.start("rec")
	if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/time_for_children", h.cmd.Process.Pid)); err != nil || ns == own {
		t.Fatalf("the agent is in no other time namespace: %s, %v", ns, err)
	}
	if got := h.claims(); !slices.Equal(got, []string{"a one"}) {
		t.Errorf("claims are %q", got)
	}
	if now := h.mounts(); now != mounts || h.pluginPID("rec") != plugin {
		t.Errorf("mounts were\n%s and are\n%s", mounts, now)
	}
	h.volctl("volume", "claim", "b", "--alloc", "two", "--owner", two.owner())
	h.kill() // unshare also kills its child
	h.wrap = nil
	h.await("the agent to be gone", func() bool { return h.try("node", "status").code == 7 })
	h.start("rec")
	if got := h.claims(); !slices.Equal(got, []string{"a one", "b two"}) {
		t.Errorf("claims are %q", got)
	}
	one.kill()
	two.kill()
	h.await("the claims of owners that ended to be released", func() bool { return len(h.claims()) == 0 })
}
