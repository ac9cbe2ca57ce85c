package mounts_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// TestTimeNamespace starts an agent in another time namespace. The agent must recognize that the
// owners of claims are alive. The next agent, which runs outside this namespace, must recognize the
// owners too.
func TestTimeNamespace(t *testing.T) {
	own, err := os.Readlink("/proc/self/ns/time")
	if err != nil {
		t.Skip("this kernel has no time namespaces")
	}
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("a", "single-node-writer")
	h.Register("b", "single-node-writer")
	one, two := harness.StartSleeper(t, ""), harness.StartSleeper(t, "")
	h.Volctl("volume", "claim", "a", "--alloc", "one", "--owner", one.Owner())
	mounts, plugin := h.Mounts(), h.PluginPID("rec")
	h.Kill()
	h.Wrapper = []string{"unshare", "--time", "--fork", "--kill-child", "--boottime", "100000"}
	h.Start("rec")
	if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/time_for_children", h.Cmd.Process.Pid)); err != nil || ns == own {
		t.Fatalf("the agent is in no other time namespace: %s, %v", ns, err)
	}
	if got := h.Claims(); !slices.Equal(got, []string{"a one"}) {
		t.Errorf("claims are %q", got)
	}
	if now := h.Mounts(); now != mounts || h.PluginPID("rec") != plugin {
		t.Errorf("mounts were\n%s and are\n%s", mounts, now)
	}
	h.Volctl("volume", "claim", "b", "--alloc", "two", "--owner", two.Owner())
	h.Kill() // unshare kills its child when it ends
	h.Wrapper = nil
	h.Await("the agent to be gone", func() bool { return h.Try("node", "status").Code == 7 })
	h.Start("rec")
	if got := h.Claims(); !slices.Equal(got, []string{"a one", "b two"}) {
		t.Errorf("claims are %q", got)
	}
	one.Kill()
	two.Kill()
	h.Await("the claims of owners that ended to be released", func() bool { return len(h.Claims()) == 0 })
}
