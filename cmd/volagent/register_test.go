package main_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/volmgr/csitest"
)

// unfiled moves the file of plugin "rec" out of the plugin directory and returns the new path.
func (h recorded) unfiled() string {
	h.t.Helper()
	file := filepath.Join(h.dir, "rec.yaml")
	h.must(os.Rename(filepath.Join(h.dir, "plugins.d", "rec.yaml"), file))
	return file
}

// TestPluginRegister checks a plugin that was registered at run time. The plugin's process survives
// a kill of the agent. The registration remains until the plugin is deregistered. The agent refuses
// the deregister while the plugin is in use.
func TestPluginRegister(t *testing.T) {
	t.Parallel()
	h := prepared(t, "10s", nil)
	file := h.unfiled()
	h.start("local")
	h.exits(0, `registered plugin "rec"`, "plugin", "register", file)
	h.exits(0, `plugin "rec" is unchanged`, "plugin", "register", file)
	h.exits(0, "none, registered at run time", "plugin", "status", "rec")
	pid := h.pluginPID("rec")
	h.register("data", "single-node-writer")
	h.volctl("volume", "claim", "data", "--alloc", "a")
	refused := func() {
		t.Helper()
		r := h.exits(4, `in use, by "data"; without it they are neither mounted nor unmounted`, "plugin", "deregister", "rec")
		if !strings.Contains(r.err, "hint: volctl plugin deregister rec --force") {
			t.Errorf("no hint in %s", r.err)
		}
	}
	refused()
	mark := h.mark()
	h.kill()
	if out, code := h.inspect(); code != 0 || !strings.Contains(out, "alive: true; registered at run time") {
		t.Errorf("inspect: exit %d\n%s", code, out)
	}
	h.start("rec")
	if now := h.pluginPID("rec"); now != pid || pid == 0 {
		t.Errorf("process %d was %d", now, pid)
	}
	refused()
	h.expect(mark)
	h.must(os.Remove(file)) // the agent does not read the file again
	h.volctl("volume", "detach", "data", "a")

	h.exits(3, `near: "rec"`, "plugin", "deregister", "recc")
	h.exits(0, "nothing", "plugin", "deregister", "recc", "--ignore-not-found")
	h.exits(0, `deregistered plugin "rec"`, "plugin", "deregister", "rec")
	gone := func() {
		t.Helper()
		if pids := h.started("/plugins/rec/"); len(pids) > 0 || !ended(pid) {
			t.Errorf("it runs: %v", pids)
		}
		if _, err := os.Lstat(filepath.Join(h.dir, "run", "plugins", "rec")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the directory of its socket: %v", err)
		}
		if list := h.volctl("plugin", "list", "-q"); list != "local" {
			t.Errorf("plugins are %q", list)
		}
	}
	gone()
	h.kill()
	h.start("local")
	gone()
	h.exits(0, "data", "volume", "list") // the volume stays registered
	if _, err := os.Stat(filepath.Join(h.dir, "d", "plugins", "rec", "state")); err != nil {
		t.Error(err)
	}
}

// TestPluginDeregisterForced checks that a forced deregister stops a plugin in use. After the next
// registration the claim continues unchanged.
func TestPluginDeregisterForced(t *testing.T) {
	t.Parallel()
	h := prepared(t, "10s", nil)
	file := h.unfiled()
	h.start("local")
	h.volctl("plugin", "register", file)
	h.register("data", "single-node-writer")
	h.volctl("volume", "claim", "data", "--alloc", "a")
	mounts, mark, pid := h.mounts(), h.mark(), h.pluginPID("rec")
	r := h.exits(0, `deregistered plugin "rec"`, "plugin", "deregister", "rec", "--force")
	if !strings.Contains(r.err, `1 volume in use through plugin "rec": no claim has a FUSE mount`) || !ended(pid) {
		t.Errorf("process %d ended: %v; said %q", pid, ended(pid), r.err)
	}
	h.kill()
	h.start("local")
	if pids := h.started("/plugins/rec/"); len(pids) > 0 {
		t.Errorf("it runs: %v", pids)
	}
	h.volctl("plugin", "register", file)
	h.exits(0, "mounted, writable", "volume", "status", "data")
	if now := h.mounts(); now != mounts {
		t.Errorf("mounts are\n%s\nwere\n%s", now, mounts)
	}
	h.expect(mark)
	h.volctl("volume", "detach", "data", "a")
	h.expect(mark, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish)
}

// TestPluginRegisterBad checks that the agent refuses an invalid plugin file and reports the number
// of the bad line. A plugin that does not become ready stays registered.
func TestPluginRegisterBad(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	write := func(text string) string {
		file := filepath.Join(h.dir, "given.yaml")
		h.must(os.WriteFile(file, []byte(text), 0o644))
		return file
	}
	for text, want := range map[string]string{
		"id: x\nsocket: /x\nsokcet: /y\n":      `given.yaml:3: unknown key "sokcet" in a plugin file`,
		"id: x\nsocket: /x\nunit: x.service\n": "given.yaml:3: socket and unit are given at once",
		"id: a/b\nsocket: /x\n":                "given.yaml:1: ",
		"":                                     "given.yaml:1: the file is empty",
	} {
		h.exits(2, want, "plugin", "register", write(text))
	}
	h.exits(2, "no such file", "plugin", "register", filepath.Join(h.dir, "none.yaml"))
	filed := filepath.Join(h.dir, "plugins.d", "rec.yaml")
	h.exits(4, `plugin "rec" is defined in `+filed, "plugin", "register", filed)
	h.exits(4, "to remove it, remove its file "+filed, "plugin", "deregister", "rec")
	h.exits(4, `plugin "local" was not registered: it is the bundled driver`, "plugin", "deregister", "local")

	bad := write("id: bad\nexec: {command: [/bin/sh, -c, echo no such luck; exit 3]}\n")
	r := h.exits(6, "it stays registered", "plugin", "register", bad, "--timeout", "3s")
	if !strings.Contains(r.err, "plugin log: no such luck") {
		t.Errorf("without its log: %s", r.err)
	}
	h.exits(0, `unchanged`, "plugin", "register", bad, "--no-wait")
	h.must(os.WriteFile(filepath.Join(h.dir, "plugins.d", "late.yaml"), []byte("id: bad\nsocket: /x\n"), 0o644))
	h.await("the file that came late", func() bool {
		return strings.Contains(h.volctl("plugin", "list"), "late.yaml")
	})
	h.exits(0, `plugin "bad" is registered at run time; deregister it first: volctl plugin deregister bad`, "plugin", "status", "late.yaml")
	h.must(os.Remove(filepath.Join(h.dir, "plugins.d", "late.yaml")))
	h.volctl("plugin", "deregister", "bad")

	// A user can register the bundled driver like any other plugin. After its deregister the
	// bundled driver has its default definition again.
	h.exits(0, `registered plugin "local"`, "plugin", "register", write("id: local\nbuiltin: local\nmax_in_flight: 3\n"))
	h.exits(0, `deregistered plugin "local"`, "plugin", "deregister", "local")
	h.exits(0, "ready", "plugin", "status", "local")
}

// TestPluginRegisterFullDisk checks that the agent neither registers nor deregisters a plugin if it
// cannot store the change.
func TestPluginRegisterFullDisk(t *testing.T) {
	t.Parallel()
	h := prepared(t, "10s", nil)
	file := h.unfiled()
	data := filepath.Join(h.dir, "d")
	h.must(os.Mkdir(data, 0o711))
	h.must(syscall.Mount("tmpfs", data, "tmpfs", 0, "size=4m,mode=711"))
	t.Cleanup(func() { h.must(syscall.Unmount(data, syscall.MNT_DETACH)) })
	h.start("local")
	h.volctl("plugin", "register", file)
	large := filepath.Join(h.dir, "large.yaml")
	h.must(os.WriteFile(large, []byte("id: large\nexec: {command: [/bin/false, "+strings.Repeat("x", 256<<10)+"]}\n"), 0o644))
	ballast := filepath.Join(data, "ballast")
	h.must(fill(ballast))
	h.exits(1, "cannot write the state database", "plugin", "register", large)
	if list := h.volctl("plugin", "list", "-q"); strings.Contains(list, "large") {
		t.Errorf("it is there: %s", list)
	}
	h.must(os.Remove(ballast))
	h.await("the database is well by itself", func() bool { return strings.Contains(h.volctl("node", "status"), "DB ok") })
	h.kill()
	h.start("rec")
	if list := h.volctl("plugin", "list", "-q"); strings.Contains(list, "large") {
		t.Errorf("it is there after a restart: %s", list)
	}
	h.volctl("plugin", "deregister", "rec")
}

// TestPluginRegisterFailingSync checks commits whose last sync fails after their data may have
// reached the file. The agent refuses the changes, and they must have no effect after a restart.
func TestPluginRegisterFailingSync(t *testing.T) {
	t.Parallel()
	h := prepared(t, "10s", nil)
	file := h.unfiled()
	other := filepath.Join(h.dir, "other.yaml")
	h.must(os.WriteFile(other, []byte("id: other\nsocket: "+filepath.Join(h.dir, "other.sock")+"\n"), 0o644))
	h.start("local")
	h.volctl("plugin", "register", file)
	pid := h.pluginPID("rec")
	end := h.failing("fdatasync", "EIO")
	h.exits(1, "cannot write the state database", "plugin", "register", other)
	h.exits(1, "cannot write the state database", "plugin", "deregister", "rec")
	if now := h.pluginPID("rec"); now != pid {
		t.Errorf("process %d was %d", now, pid)
	}
	end()
	h.await("the database is well by itself", func() bool { return strings.Contains(h.volctl("node", "status"), "DB ok") })
	h.kill()
	h.start("rec")
	if list := h.volctl("plugin", "list", "-q"); list != "local\nrec" {
		t.Errorf("plugins are %q", list)
	}
	h.volctl("plugin", "deregister", "rec")
}

// TestPluginInit checks that the agent accepts the plugin files that volctl plugin init writes. The
// agent pulls no images for them.
func TestPluginInit(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.env = append(h.env, "PATH="+binDir) // a PATH without podman keeps this machine's own podman unused
	h.start("local")
	for _, id := range []string{"cephfs", "ebs", "efs", "gcepd", "hostpath", "nfs", "rbd", "s3", "smb"} {
		file := filepath.Join(h.dir, id+".yaml")
		h.exits(0, "wrote "+file, "plugin", "init", id, file)
		h.exits(0, `registered plugin "`+id+`"`, "plugin", "register", file, "--no-wait")
		h.exits(0, "container", "plugin", "status", id, "-o", "go-template={{.runner}}")
		h.exits(0, "deregistered", "plugin", "deregister", id)
	}
}
