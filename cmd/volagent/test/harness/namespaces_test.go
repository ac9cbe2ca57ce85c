package harness

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestNamespaces checks that namespaces finds a network namespace with a process below this one, and
// one that only a descriptor keeps alive.
func TestNamespaces(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		t.Skip("root is needed:", err)
	}
	ended := false
	end := func() {
		if ended {
			return
		}
		ended = true
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // Wait returns an error because sleep was killed
	}
	defer end()

	holder := fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)
	ns, err := os.Readlink(holder)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(namespaces(), holder+" "+ns) {
		t.Errorf("no %s %s in %q", holder, ns, namespaces())
	}

	file, err := os.Open(holder)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	end()
	found := func() bool {
		return slices.ContainsFunc(namespaces(), func(line string) bool { return strings.HasSuffix(line, ns) })
	}
	if !found() {
		t.Errorf("no %s in %q", ns, namespaces())
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if found() {
		t.Errorf("%s is still in %q", ns, namespaces())
	}
}
