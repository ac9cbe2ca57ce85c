package mounts_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// TestOwnership checks that the root directory of a volume has the owner and mode that the claim
// requests. Both must be correct when volctl prints the claim's path, and after every remount. The
// agent changes files in the volume only with --recursive, and only if the root directory has
// another owner or mode.
func TestOwnership(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t)
	h.Start("local")
	h.Volctl("volume", "create", "data", "--plugin", "local", "--access-mode", "single-node-multi-writer")
	at := filepath.Join(h.Dir, "at")
	h.Must(os.Mkdir(at, 0o755))
	claim := []string{"volume", "claim", "data", "--alloc", "a", "--at", at, "--uid", "1234", "--gid", "77", "--mode", "2770"}
	path := h.Volctl(claim...)
	if got := harness.OwnerAndMode(h, path); path != at || got != "1234:77 2770" {
		t.Fatalf("%s has %s", path, got)
	}
	if got := h.Volctl("volume", "claim", "data", "--alloc", "a", "--at", at, "--uid", "1234", "--gid", "77", "--mode", "02770"); got != path {
		t.Errorf("the same claim again: %s", got)
	}
	h.ExpectRefusal(4, "with another uid, gid or mode", "volume", "claim", "data", "--alloc", "a", "--at", at, "--uid", "99")

	h.Must(os.WriteFile(filepath.Join(at, "file"), nil, 0o755))
	// Keep the group 77. For another group the driver would change all files.
	h.Must(os.Chown(at, 0, 77))
	h.Must(os.Chmod(at, 0o700))
	h.Must(syscall.Unmount(at, syscall.MNT_DETACH))
	target := h.Volctl("claim", "list", "-o", "go-template={{range .}}{{.target}}{{end}}")
	h.Must(syscall.Unmount(target, syscall.MNT_DETACH))
	h.Volctl(claim...)
	if got := harness.OwnerAndMode(h, at) + ", " + harness.OwnerAndMode(h, filepath.Join(at, "file")); got != "1234:77 2770, 0:77 0755" {
		t.Errorf("mounted anew: %s", got)
	}

	other := h.Volctl("volume", "claim", "data", "--alloc", "b", "--uid", "1234", "--recursive")
	if got := harness.OwnerAndMode(h, filepath.Join(other, "file")); !strings.HasPrefix(got, "0:") {
		t.Errorf("although the root was as asked, a file in it was changed: %s", got)
	}
	h.ExpectRefusal(4, "mounted for the group of its first claim", "volume", "claim", "data", "--alloc", "c", "--gid", "66")
	h.Volctl("volume", "claim", "data", "--alloc", "c", "--uid", "55", "--gid", "77", "--mode", "750", "--recursive")
	if got := harness.OwnerAndMode(h, at) + ", " + harness.OwnerAndMode(h, filepath.Join(at, "file")); got != "55:77 0750, 55:77 0750" {
		t.Errorf("recursive: %s", got)
	}
	if got := h.Volctl("events", "--volume", "data"); !strings.Contains(got, "uid 55, mode 0750, recursive") {
		t.Errorf("the events do not tell of it:\n%s", got)
	}
	if got := h.Volctl("claim", "list", "--alloc", "c", "-o", "go-template={{range .}}{{.uid}} {{.gid}} {{.mode}} {{.recursive}}{{end}}"); got != "55 77 0750 true" {
		t.Errorf("the claim shows %s", got)
	}
}

// TestOwnershipRefused checks owners and modes that the agent cannot set. The agent either refuses
// the claim before it mounts the volume, or fails with the kernel's error. No claim may remain.
func TestOwnershipRefused(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t)
	h.Start("local")
	h.Volctl("volume", "create", "data", "--plugin", "local")
	h.Volctl("volume", "create", "raw", "--plugin", "local", "--size", "1MiB", "--param", "type=image", "--attachment-mode", "block-device")
	for _, tt := range []struct {
		code  int
		words string
		args  []string
	}{
		{2, "nor a name that this host knows", []string{"data", "--uid", "no-such-user"}},
		{2, "nor a name that this host knows", []string{"data", "--gid", "4294967295"}},
		{2, "octal number", []string{"data", "--mode", "0799"}},
		{2, "octal number", []string{"data", "--mode", "10000"}},
		{2, "--recursive needs", []string{"data", "--recursive"}},
		{4, "only reads cannot change who owns", []string{"data", "--read-only", "--uid", "5"}},
		{4, "claimed as a block device", []string{"raw", "--uid", "5"}},
		{1, "read-only file system", []string{"data", "--mount-flag", "ro", "--uid", "5"}},
	} {
		h.ExpectRefusal(tt.code, tt.words, append([]string{"volume", "claim"}, tt.args...)...)
	}
	h.Await("nothing to be claimed", func() bool { return h.Volctl("claim", "list", "-q") == "" })
	if got := h.Mounts(); got != "" {
		t.Errorf("something is mounted:\n%s", got)
	}
}

// TestMountGroup checks that a plugin with VOLUME_MOUNT_GROUP receives the group in every call that
// contains the volume's capability. The agent must then not change the group of the files itself.
// It must send no group to other plugins.
func TestMountGroup(t *testing.T) {
	t.Parallel()
	for _, able := range []bool{true, false} {
		h := harness.StartRecorded(t, "30s", func(c *csitest.Config) { c.MountGroup = able })
		h.Register("data", "single-node-multi-writer")
		mark := h.Mark()
		path := h.Volctl("volume", "claim", "data", "--alloc", "a", "--gid", "77", "--mode", "0750")
		told, group := "", "77"
		if able {
			told, group = "77", "0" // this plugin ignores the group
		}
		if got := harness.OwnerAndMode(h.Host, path); got != "0:"+group+" 0750" {
			t.Errorf("a plugin that can: %t; %s has %s", able, path, got)
		}
		for _, call := range h.Calls(mark) {
			if call.MountGroup != told {
				t.Errorf("a plugin that can: %t; %s was told of group %q", able, call.Method, call.MountGroup)
			}
		}
		mark = h.Mark()
		if able {
			h.ExpectRefusal(4, "mounted for the group of its first claim (gid 77)", "volume", "claim", "data", "--alloc", "b", "--gid", "78")
		}
		h.Volctl("volume", "claim", "data", "--alloc", "c")
		if calls := h.Calls(mark); len(calls) != 1 || calls[0].MountGroup != told {
			t.Errorf("a plugin that can: %t; a claim that asks for nothing: %+v", able, calls)
		}
	}
}

// TestSELinuxContext checks that the plugin receives a mount option with an SELinux label
// unchanged, including the commas in the label.
func TestSELinuxContext(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "30s", nil)
	h.Register("data", "single-node-writer")
	mark := h.Mark()
	const label = `context="system_u:object_r:svirt_sandbox_file_t:s0:c1,c2"`
	h.Volctl("volume", "claim", "data", "--mount-flag", label)
	calls := h.Calls(mark)
	for _, call := range calls {
		if !strings.HasSuffix(call.Capability, ":"+label) {
			t.Errorf("%s got %s", call.Method, call.Capability)
		}
	}
	if len(calls) != 3 {
		t.Errorf("%d calls", len(calls))
	}
}
