package claims_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// TestDetachUnderForeignMount mounts another file system over a target or a staging path, and
// detaches the volume with or without the plugin. The plugin would unmount the topmost mount, which
// is the foreign mount. Therefore the agent must not call the plugin, and the content of the
// foreign mount must survive. When the foreign mount is gone, the agent completes the detach
// without another request.
func TestDetachUnderForeignMount(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"target", "staging"} {
		for _, how := range []string{"", "--without-plugin=lazy"} {
			t.Run(where+how, func(t *testing.T) {
				t.Parallel()
				h := harness.StartRecorded(t, "10s", nil)
				h.Register("data", "single-node-writer")
				at := h.Volctl("volume", "claim", "data", "--alloc", "a")
				if where == "staging" {
					at = h.StagingPath("data")
				}
				h.Must(syscall.Mount("theirs", at, "tmpfs", 0, "size=1m"))
				planted := filepath.Join(at, "planted")
				h.Must(os.WriteFile(planted, []byte("theirs"), 0o644))
				user, err := os.Open(planted)
				h.Must(err)
				defer func() { _ = user.Close() }()

				mark := h.Mark()
				args := []string{"volume", "detach", "data", "a", "--timeout", "1s"}
				if how != "" {
					args = append(args, how)
				}
				r := h.Try(args...)
				for _, word := range []string{at, "tmpfs", `"theirs"`, "mount id", "open file"} {
					if r.Code == 0 || !strings.Contains(r.Err, word) {
						t.Errorf("exit %d, and no %s in:\n%s", r.Code, word, r.Err)
					}
				}
				if raw, err := os.ReadFile(planted); string(raw) != "theirs" {
					t.Errorf("the content of the other mount is %q, %v", raw, err)
				}
				if where == "target" {
					h.ExpectCalls(mark)
				}
				h.Must(user.Close())
				harness.Unmount(t, at)
				h.ExpectClean("data")
			})
		}
	}
}

// TestForeignMountBeforePendingCall detaches a volume without its plugin. Before the plugin is
// back, the test mounts another file system on the former target or staging path. The agent must
// not make the pending calls until the other file system is unmounted.
func TestForeignMountBeforePendingCall(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"target", "staging"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			h := newApart(t, "10s", func(c *csitest.Config) { c.Attach = true })
			h.Register("data", "single-node-writer")
			at := h.Volctl("volume", "claim", "data", "--alloc", "a")
			if where == "staging" {
				at = h.StagingPath("data")
			}
			h.lose()
			h.Volctl("volume", "detach", "data", "a", "--without-plugin")
			h.Must(os.MkdirAll(at, 0o700))
			h.Must(syscall.Mount("theirs", at, "tmpfs", 0, "size=1m"))
			planted := filepath.Join(at, "planted")
			h.Must(os.WriteFile(planted, []byte("theirs"), 0o644))

			h.Kill() // the next agent must also recognize the foreign mount
			h.Start()
			h.startPlugin()
			h.Await("the foreign mount to be named", func() bool {
				return strings.Contains(h.Volctl("volume", "status", "data"), `source "theirs"`)
			})
			if raw, err := os.ReadFile(planted); string(raw) != "theirs" {
				t.Errorf("the content of the other mount is %q, %v", raw, err)
			}
			harness.Unmount(t, at)
			h.free("data")
		})
	}
}

// TestDetachOfDoubleMount detaches a volume that the plugin has mounted twice on the same target.
// The agent must unmount both mounts, because the plugin made both.
func TestDetachOfDoubleMount(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	at := h.Volctl("volume", "claim", "data", "--alloc", "a")
	h.Must(syscall.Mount(h.StagingPath("data"), at, "", syscall.MS_BIND, ""))
	h.Volctl("volume", "detach", "data", "a")
	h.ExpectClean("data")
}
