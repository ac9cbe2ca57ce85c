package plugins_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

func TestMain(m *testing.M) { harness.Main(m) }

// removePluginFile moves the file of the plugin "rec" out of the plugin directory and returns its
// new path.
func removePluginFile(h harness.Recorded) string {
	h.T.Helper()
	file := filepath.Join(h.Dir, "rec.yaml")
	h.Must(os.Rename(filepath.Join(h.Dir, "plugins.d", "rec.yaml"), file))
	return file
}

// TestPluginRegister checks a plugin that was registered by a command. The plugin's process
// survives a kill of the agent, and the registration remains until a user deregisters the plugin.
// The agent refuses the deregister while the plugin is in use.
func TestPluginRegister(t *testing.T) {
	t.Parallel()
	h := harness.NewRecorded(t, "10s", nil)
	file := removePluginFile(h)
	h.Start("local")
	h.ExpectExit(0, `registered plugin "rec"`, "plugin", "register", file)
	h.ExpectExit(0, `plugin "rec" is unchanged`, "plugin", "register", file)
	h.ExpectExit(0, "none, registered at run time", "plugin", "status", "rec")
	pid := h.PluginPID("rec")
	h.Register("data", "single-node-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	refused := func() {
		t.Helper()
		r := h.ExpectExit(4, `in use, by "data"; without it they are neither mounted nor unmounted`, "plugin", "deregister", "rec")
		if !strings.Contains(r.Err, "hint: volctl plugin deregister rec --force") {
			t.Errorf("no hint in %s", r.Err)
		}
	}
	refused()
	mark := h.Mark()
	h.Kill()
	if out, code := harness.Inspect(h.Host); code != 0 || !strings.Contains(out, "alive: true; registered at run time") {
		t.Errorf("inspect: exit %d\n%s", code, out)
	}
	h.Start("rec")
	if now := h.PluginPID("rec"); now != pid || pid == 0 {
		t.Errorf("process %d was %d", now, pid)
	}
	refused()
	h.ExpectCalls(mark)
	h.Must(os.Remove(file)) // the agent no longer needs the file
	h.Volctl("volume", "detach", "data", "a")

	h.ExpectExit(3, `near: "rec"`, "plugin", "deregister", "recc")
	h.ExpectExit(0, "nothing", "plugin", "deregister", "recc", "--ignore-not-found")
	h.ExpectExit(0, `deregistered plugin "rec"`, "plugin", "deregister", "rec")
	gone := func() {
		t.Helper()
		if pids := h.PluginPIDs("/plugins/rec/"); len(pids) > 0 || !harness.ProcessEnded(pid) {
			t.Errorf("it runs: %v", pids)
		}
		if _, err := os.Lstat(filepath.Join(h.Dir, "run", "plugins", "rec")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the directory of its socket: %v", err)
		}
		if list := h.Volctl("plugin", "list", "-q"); list != "local" {
			t.Errorf("plugins are %q", list)
		}
	}
	gone()
	h.Kill()
	h.Start("local")
	gone()
	h.ExpectExit(0, "data", "volume", "list") // the volume must stay registered
	if _, err := os.Stat(filepath.Join(h.Dir, "d", "plugins", "rec", "state")); err != nil {
		t.Error(err)
	}
}

// TestPluginDeregisterForced checks that a forced deregister stops a plugin in use. After the
// plugin is registered again, the claim must continue unchanged.
func TestPluginDeregisterForced(t *testing.T) {
	t.Parallel()
	h := harness.NewRecorded(t, "10s", nil)
	file := removePluginFile(h)
	h.Start("local")
	h.Volctl("plugin", "register", file)
	h.Register("data", "single-node-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	mounts, mark, pid := h.Mounts(), h.Mark(), h.PluginPID("rec")
	r := h.ExpectExit(0, `deregistered plugin "rec"`, "plugin", "deregister", "rec", "--force")
	if !strings.Contains(r.Err, `1 volume in use through plugin "rec": no claim has a FUSE mount`) || !harness.ProcessEnded(pid) {
		t.Errorf("process %d ended: %v; said %q", pid, harness.ProcessEnded(pid), r.Err)
	}
	h.Kill()
	h.Start("local")
	if pids := h.PluginPIDs("/plugins/rec/"); len(pids) > 0 {
		t.Errorf("it runs: %v", pids)
	}
	h.Volctl("plugin", "register", file)
	h.ExpectExit(0, "mounted, writable", "volume", "status", "data")
	if now := h.Mounts(); now != mounts {
		t.Errorf("mounts are\n%s\nwere\n%s", now, mounts)
	}
	h.ExpectCalls(mark)
	h.Volctl("volume", "detach", "data", "a")
	h.ExpectCalls(mark, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish)
}

// TestPluginRegisterBad checks that the agent refuses an invalid plugin file and reports the number
// of the bad line. A valid plugin that does not become ready stays registered.
func TestPluginRegisterBad(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	write := func(text string) string {
		file := filepath.Join(h.Dir, "given.yaml")
		h.Must(os.WriteFile(file, []byte(text), 0o644))
		return file
	}
	for text, want := range map[string]string{
		"id: x\nsocket: /x\nsokcet: /y\n":      `given.yaml:3: unknown key "sokcet" in a plugin file`,
		"id: x\nsocket: /x\nunit: x.service\n": "given.yaml:3: socket and unit are given at once",
		"id: a/b\nsocket: /x\n":                "given.yaml:1: ",
		"":                                     "given.yaml:1: the file is empty",
	} {
		h.ExpectExit(2, want, "plugin", "register", write(text))
	}
	h.ExpectExit(2, "no such file", "plugin", "register", filepath.Join(h.Dir, "none.yaml"))
	filed := filepath.Join(h.Dir, "plugins.d", "rec.yaml")
	h.ExpectExit(4, `plugin "rec" is defined in `+filed, "plugin", "register", filed)
	h.ExpectExit(4, "to remove it, remove its file "+filed, "plugin", "deregister", "rec")
	h.ExpectExit(4, `plugin "local" was not registered: it is the bundled driver`, "plugin", "deregister", "local")

	bad := write("id: bad\nexec: {command: [/bin/sh, -c, echo no such luck; exit 3]}\n")
	r := h.ExpectExit(6, "it stays registered", "plugin", "register", bad, "--timeout", "3s")
	if !strings.Contains(r.Err, "plugin log: no such luck") {
		t.Errorf("without its log: %s", r.Err)
	}
	h.ExpectExit(0, `unchanged`, "plugin", "register", bad, "--no-wait")
	h.Must(os.WriteFile(filepath.Join(h.Dir, "plugins.d", "late.yaml"), []byte("id: bad\nsocket: /x\n"), 0o644))
	h.Await("the file that came late", func() bool {
		return strings.Contains(h.Volctl("plugin", "list"), "late.yaml")
	})
	h.ExpectExit(0, `plugin "bad" is registered at run time; deregister it first: volctl plugin deregister bad`, "plugin", "status", "late.yaml")
	h.Must(os.Remove(filepath.Join(h.Dir, "plugins.d", "late.yaml")))
	h.Volctl("plugin", "deregister", "bad")

	// A user can register the bundled driver like any other plugin. After a deregister, the bundled
	// driver must have its default definition again.
	h.ExpectExit(0, `registered plugin "local"`, "plugin", "register", write("id: local\nbuiltin: local\nmax_in_flight: 3\n"))
	h.ExpectExit(0, `deregistered plugin "local"`, "plugin", "deregister", "local")
	h.ExpectExit(0, "ready", "plugin", "status", "local")
}

// TestPluginRegisterFullDisk checks that the agent neither registers nor deregisters a plugin if it
// cannot store the change.
func TestPluginRegisterFullDisk(t *testing.T) {
	t.Parallel()
	h := harness.NewRecorded(t, "10s", nil)
	file := removePluginFile(h)
	data := filepath.Join(h.Dir, "d")
	h.Must(os.Mkdir(data, 0o711))
	h.Must(syscall.Mount("tmpfs", data, "tmpfs", 0, "size=4m,mode=711"))
	t.Cleanup(func() { h.Must(syscall.Unmount(data, syscall.MNT_DETACH)) })
	h.Start("local")
	h.Volctl("plugin", "register", file)
	large := filepath.Join(h.Dir, "large.yaml")
	h.Must(os.WriteFile(large, []byte("id: large\nexec: {command: [/bin/false, "+strings.Repeat("x", 256<<10)+"]}\n"), 0o644))
	ballast := filepath.Join(data, "ballast")
	h.Must(harness.FillFileSystem(ballast))
	h.ExpectExit(1, "cannot write the state database", "plugin", "register", large)
	if list := h.Volctl("plugin", "list", "-q"); strings.Contains(list, "large") {
		t.Errorf("it is there: %s", list)
	}
	h.Must(os.Remove(ballast))
	h.Await("the database is well by itself", func() bool { return strings.Contains(h.Volctl("node", "status"), "DB ok") })
	h.Kill()
	h.Start("rec")
	if list := h.Volctl("plugin", "list", "-q"); strings.Contains(list, "large") {
		t.Errorf("it is there after a restart: %s", list)
	}
	h.Volctl("plugin", "deregister", "rec")
}

// TestPluginRegisterFailingSync checks commits whose last sync fails, although their data may
// already be in the file. The agent must refuse the changes, and they must have no effect after a
// restart.
func TestPluginRegisterFailingSync(t *testing.T) {
	t.Parallel()
	h := harness.NewRecorded(t, "10s", nil)
	file := removePluginFile(h)
	other := filepath.Join(h.Dir, "other.yaml")
	h.Must(os.WriteFile(other, []byte("id: other\nsocket: "+filepath.Join(h.Dir, "other.sock")+"\n"), 0o644))
	h.Start("local")
	h.Volctl("plugin", "register", file)
	pid := h.PluginPID("rec")
	end := harness.FailSyscall(h.Host, "fdatasync", "EIO")
	h.ExpectExit(1, "cannot write the state database", "plugin", "register", other)
	h.ExpectExit(1, "cannot write the state database", "plugin", "deregister", "rec")
	if now := h.PluginPID("rec"); now != pid {
		t.Errorf("process %d was %d", now, pid)
	}
	end()
	h.Await("the database is well by itself", func() bool { return strings.Contains(h.Volctl("node", "status"), "DB ok") })
	h.Kill()
	h.Start("rec")
	if list := h.Volctl("plugin", "list", "-q"); list != "local\nrec" {
		t.Errorf("plugins are %q", list)
	}
	h.Volctl("plugin", "deregister", "rec")
}

// TestPluginInit checks that the agent accepts the plugin files that volctl plugin init writes. The
// agent must not pull an image for them.
func TestPluginInit(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t)
	h.Env = append(h.Env, "PATH="+harness.BinDir) // hide podman from the agent
	h.Start("local")
	for _, id := range []string{"cephfs", "ebs", "efs", "gcepd", "hostpath", "nfs", "rbd", "s3", "smb", "juicefs", "rclone"} {
		file := filepath.Join(h.Dir, id+".yaml")
		h.ExpectExit(0, "wrote "+file, "plugin", "init", id, file)
		h.ExpectExit(4, "has enabled: false", "plugin", "register", file, "--no-wait")
		h.ExpectExit(0, `enabled plugin "`+id+`"`, "plugin", "enable", id, "-y", "--file", file)
		h.ExpectExit(0, `registered plugin "`+id+`"`, "plugin", "register", file, "--no-wait")
		h.ExpectExit(0, "container", "plugin", "status", id, "-o", "go-template={{.runner}}")
		h.ExpectExit(0, "deregistered", "plugin", "deregister", id)
	}
}

// TestPluginEnable checks that the agent ignores a disabled file, notices when it is enabled, and stops
// the plugin when it is disabled again.
func TestPluginEnable(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t)
	h.Start("local")
	file := filepath.Join(h.Dir, "plugins.d", "off.yaml")
	h.Must(os.MkdirAll(filepath.Dir(file), 0o755))
	h.Must(os.WriteFile(file, []byte("id: off\nenabled: false\nbuiltin: local\n"), 0o644))
	h.Await("the plugin is shown as disabled", func() bool {
		return strings.Contains(h.Try("plugin", "status", "off", "-o", "go-template={{.state}}").Out, "disabled")
	})
	h.ExpectExit(0, `enabled plugin "off"`, "plugin", "enable", "off", "-y")
	h.Volctl("wait", "--plugin", "off", "--timeout", "60s")
	h.ExpectExit(0, `disabled plugin "off"`, "plugin", "disable", "off")
	h.Await("the plugin is disabled again", func() bool {
		return strings.Contains(h.Try("plugin", "status", "off", "-o", "go-template={{.state}}").Out, "disabled")
	})
	if text, err := os.ReadFile(file); err != nil || string(text) != "id: off\nenabled: false\nbuiltin: local\n" {
		t.Errorf("%v, the file is %q", err, text)
	}
}
