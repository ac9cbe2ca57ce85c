package state_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// longDir returns a host whose data dir has a path of about 600 bytes. It also returns this path.
func longDir(t *testing.T) (h harness.Recorded, data string) {
	t.Helper()
	h = harness.NewRecorded(t, "10s", func(c *csitest.Config) { c.LongPaths = true })
	data = filepath.Join(h.Dir, strings.Repeat("/"+strings.Repeat("long", 50), 3))
	h.Must(os.MkdirAll(filepath.Dir(data), 0o755))
	h.MoreArgs = append(h.MoreArgs, "--data-dir", data)
	h.Start("rec", "local")
	return h, data
}

// expectKept claims a volume, writes a file, and kills the agent. It checks that the file still
// exists at the same path after the restart, and at the path of the next claim after a detach.
func expectKept(h harness.Recorded, id, data string) {
	h.T.Helper()
	path := h.Volctl("volume", "claim", id, "--alloc", strings.Repeat("a", 60), "--timeout", "60s")
	if !strings.HasPrefix(path, data+"/csi/") {
		h.T.Errorf("%s is mounted at %s, which is not below %s", id, path, data)
	}
	h.Must(os.WriteFile(filepath.Join(path, "file"), []byte("kept"), 0o644))

	mounts := h.Mounts()
	h.Kill()
	h.Start("rec", "local")
	h.Volctl("wait", "--volume", id, "--for", "mounted", "--timeout", "60s")
	if now := h.Mounts(); now != mounts {
		h.T.Errorf("after a kill of the agent, mounts are\n%s\nthey were\n%s", now, mounts)
	}
	h.Volctl("volume", "detach", id, "--all", "--timeout", "60s")
	at := filepath.Join(h.Dir, "at")
	h.Must(os.MkdirAll(at, 0o755))
	path = h.Volctl("volume", "claim", id, "--alloc", "b", "--at", at, "--timeout", "60s")
	if raw, err := os.ReadFile(filepath.Join(path, "file")); string(raw) != "kept" {
		h.T.Errorf("%s holds %q, %v", id, raw, err)
	}
	h.Volctl("volume", "detach", id, "--all", "--timeout", "60s")
}

// TestLongDataDir claims and uses volumes at paths that are much longer than 128 bytes, the length
// that CSI requires plugins to accept. Each start of the agent must log exactly one warning about
// the length.
func TestLongDataDir(t *testing.T) {
	t.Parallel()
	h, data := longDir(t)
	local := []string{"volume", "create", "--plugin", "local"}
	h.Volctl(append(local, "dir", "--param", "type=directory")...)
	h.Volctl(append(local, "disk", "--param", "type=image", "--size", "16MiB", "--fs-type", "ext4")...)
	h.Volctl("volume", "create", strings.Repeat("made", 20), "--plugin", "rec")
	for _, id := range []string{"dir", "disk", strings.Repeat("made", 20)} {
		expectKept(h, id, data)
	}

	h.Volctl(append(local, "raw", "--param", "type=image", "--size", "1MiB", "--attachment-mode", "block-device")...)
	device := h.Volctl("volume", "claim", "raw")
	h.Must(os.WriteFile(device, []byte("raw"), 0o600))
	h.Volctl("volume", "detach", "raw")
	if raw, err := os.ReadFile(h.Volctl("volume", "claim", "raw")); !bytes.HasPrefix(raw, []byte("raw")) {
		t.Errorf("the raw volume holds %.10q, %v", raw, err)
	}
	h.Volctl("volume", "detach", "raw")

	h.Volctl("volume", "snapshot", "create", "dir", "s")
	h.Volctl(append(local, "copy", "--snapshot", "s")...)
	if raw, err := os.ReadFile(filepath.Join(h.Volctl("volume", "claim", "copy"), "file")); string(raw) != "kept" {
		t.Errorf("the copy holds %q, %v", raw, err)
	}
	h.Volctl("volume", "detach", "copy")
	h.Volctl("volume", "snapshot", "delete", "local", "s", "-y")
	if out := h.Volctl("volume", "snapshot", "list", "--plugin", "local", "-q"); out != "" {
		t.Errorf("snapshots are left: %s", out)
	}
	for _, id := range []string{"dir", "disk", "raw", "copy", strings.Repeat("made", 20)} {
		h.Volctl("volume", "delete", id, "-y")
	}

	raw, err := os.ReadFile(h.Log.Name())
	if n := bytes.Count(raw, []byte("data_dir is long")); err != nil || n != 4 {
		t.Errorf("%d warnings in 4 starts of the agent, %v", n, err)
	}
}
