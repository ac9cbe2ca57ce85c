package main_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/csitest"
)

// longDir returns a host whose data dir has a path of about 600 bytes, and the path.
func longDir(t *testing.T) (h recorded, data string) {
	t.Helper()
	h = prepared(t, "10s", func(c *csitest.Config) { c.LongPaths = true })
	data = filepath.Join(h.dir, strings.Repeat("/"+strings.Repeat("long", 50), 3))
	h.must(os.MkdirAll(filepath.Dir(data), 0o755))
	h.more = append(h.more, "--data-dir", data)
	h.start("rec", "local")
	return h, data
}

// keeps checks that data survives a kill of the agent and a detach. It claims a volume, writes a
// file and kills the agent. Then it reads the file at the same path and, after a detach, at the
// path of the next claim.
func (h recorded) keeps(id, data string) {
	h.t.Helper()
	path := h.volctl("volume", "claim", id, "--alloc", strings.Repeat("a", 60), "--timeout", "60s")
	if !strings.HasPrefix(path, data+"/csi/") {
		h.t.Errorf("%s is mounted at %s, which is not below %s", id, path, data)
	}
	h.must(os.WriteFile(filepath.Join(path, "file"), []byte("kept"), 0o644))

	mounts := h.mounts()
	h.kill()
	h.start("rec", "local")
	h.volctl("wait", "--volume", id, "--for", "mounted", "--timeout", "60s")
	if now := h.mounts(); now != mounts {
		h.t.Errorf("after a kill of the agent, mounts are\n%s\nthey were\n%s", now, mounts)
	}
	h.volctl("volume", "detach", id, "--all", "--timeout", "60s")
	at := filepath.Join(h.dir, "at")
	h.must(os.MkdirAll(at, 0o755))
	path = h.volctl("volume", "claim", id, "--alloc", "b", "--at", at, "--timeout", "60s")
	if raw, err := os.ReadFile(filepath.Join(path, "file")); string(raw) != "kept" {
		h.t.Errorf("%s holds %q, %v", id, raw, err)
	}
	h.volctl("volume", "detach", id, "--all", "--timeout", "60s")
}

// TestLongDataDir claims and uses volumes at paths much longer than the 128 bytes that CSI requires
// plugins to accept. Each start of the agent logs one warning about the length.
func TestLongDataDir(t *testing.T) {
	t.Parallel()
	h, data := longDir(t)
	local := []string{"volume", "create", "--plugin", "local"}
	h.volctl(append(local, "dir", "--param", "type=directory")...)
	h.volctl(append(local, "disk", "--param", "type=image", "--size", "16MiB", "--fs-type", "ext4")...)
	h.volctl("volume", "create", strings.Repeat("made", 20), "--plugin", "rec")
	for _, id := range []string{"dir", "disk", strings.Repeat("made", 20)} {
		h.keeps(id, data)
	}

	h.volctl(append(local, "raw", "--param", "type=image", "--size", "1MiB", "--attachment-mode", "block-device")...)
	device := h.volctl("volume", "claim", "raw")
	h.must(os.WriteFile(device, []byte("raw"), 0o600))
	h.volctl("volume", "detach", "raw")
	if raw, err := os.ReadFile(h.volctl("volume", "claim", "raw")); !bytes.HasPrefix(raw, []byte("raw")) {
		t.Errorf("the raw volume holds %.10q, %v", raw, err)
	}
	h.volctl("volume", "detach", "raw")

	h.volctl("volume", "snapshot", "create", "dir", "s")
	h.volctl(append(local, "copy", "--snapshot", "s")...)
	if raw, err := os.ReadFile(filepath.Join(h.volctl("volume", "claim", "copy"), "file")); string(raw) != "kept" {
		t.Errorf("the copy holds %q, %v", raw, err)
	}
	h.volctl("volume", "detach", "copy")
	h.volctl("volume", "snapshot", "delete", "local", "s", "-y")
	if out := h.volctl("volume", "snapshot", "list", "--plugin", "local", "-q"); out != "" {
		t.Errorf("snapshots are left: %s", out)
	}
	for _, id := range []string{"dir", "disk", "raw", "copy", strings.Repeat("made", 20)} {
		h.volctl("volume", "delete", id, "-y")
	}

	raw, err := os.ReadFile(h.log.Name())
	if n := bytes.Count(raw, []byte("data_dir is long")); err != nil || n != 4 {
		t.Errorf("%d warnings in 4 starts of the agent, %v", n, err)
	}
}
