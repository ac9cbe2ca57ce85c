package supervisor_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/agent/supervisor/definitions"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestBadFiles checks that the status shows each bad file as a failed plugin, with the line of the
// mistake. The other plugins must keep running.
func TestBadFiles(t *testing.T) {
	b := newBench(t)
	// The field want is the error message without the path of the file, which comes before it.
	type row struct{ id, content, want string }
	rows := map[string]row{
		"syntax.yaml":    {"syntax.yaml", "id: [\n", ":1: did not find expected node content"},
		"empty.yaml":     {"empty.yaml", "# nothing\n", ":1: the file is empty"},
		"list.yaml":      {"list.yaml", "- id: x\n", ":1: not a plugin file: expected YAML keys such as id and exec"},
		"noid.yaml":      {"noid.yaml", "socket: /s\n", ":1: the plugin has no id"},
		"badid.yaml":     {"badid.yaml", "id: a/b\nsocket: /s\n", `:1: plugin id "a/b" is not 1 to 48 characters of A-Z a-z 0-9 . _ -`},
		"unknown.yaml":   {"unknown", "id: unknown\nsocket: /s\nrestart: always\n", `:3: unknown key "restart" in a plugin file; known are builtin, container,`},
		"nested.yaml":    {"nested", "id: nested\nsocket: /s\nhealth:\n  timeouts: 3s\n", `:4: unknown key "timeouts" in health; known are interval, start_timeout, timeout`},
		"twice.yaml":     {"twice", "id: twice\nsocket: /s\nsocket: /t\n", `:3: key "socket" stands twice in a plugin file, first in line 2`},
		"none.yaml":      {"none", "id: none\n", ":1: nothing says how the plugin is run: exactly one of exec, container, unit, socket, builtin is needed"},
		"two.yaml":       {"two", "id: two\nsocket: /s\nbuiltin: local\n", ":3: builtin and socket are given at once: exactly one of"},
		"runtime.yaml":   {"runtime", "id: runtime\ncontainer: {image: x}\n", `:2: container has no runtime; it can be podman or docker`},
		"image.yaml":     {"image", "id: image\ncontainer: {runtime: podman}\n", `:2: container has no image`},
		"mounts.yaml":    {"mounts", "id: mounts\ncontainer: {runtime: docker, image: x, mounts: [ceph]}\n", `:2: in mounts: "ceph" is not SOURCE:TARGET[:OPTIONS] with two absolute paths`},
		"own.yaml":       {"own", "id: own\nunit: volagent.service\n", `:2: unit "volagent.service" is the agent itself`},
		"unit.yaml":      {"unit", "id: unit\nunit: x.mount\n", `:2: unit "x.mount" is not the name of a service`},
		"builtin.yaml":   {"builtin", "id: builtin\nbuiltin: nfs\n", `:2: "builtin" is "nfs"; it can be local`},
		"type.yaml":      {"type", "id: type\nsocket: /s\ntype: nodes\n", `:3: "type" is "nodes"; it can be node, controller, monolith`},
		"duration.yaml":  {"duration", "id: duration\nsocket: /s\ntimeouts:\n  node: 30x\n", `:4: "node" is "30x"; `},
		"flight.yaml":    {"flight", "id: flight\nsocket: /s\nmax_in_flight: 0\n", `:3: "max_in_flight" is "0"; it is a whole number from 1 to 10000`},
		"change.yaml":    {"change", "id: change\nsocket: /s\non_change: maybe\n", `:3: "on_change" is "maybe"; it can be pending, restart`},
		"relative.yaml":  {"relative", "id: relative\nsocket: run/s\n", `:2: socket "run/s" is not an absolute path`},
		"long.yaml":      {"long", "id: long\nsocket: /" + strings.Repeat("s", 107) + "\n", ":2: socket path \"/sss"},
		"command.yaml":   {"command", "id: command\nexec:\n  command: /bin/x -y\n", `:3: "command" is not a list, like [/usr/bin/plugin, --flag]`},
		"nocommand.yaml": {"nocommand", "id: nocommand\nexec: {env: {A: b}}\n", ":2: exec has no command"},
		"dir.yaml":       {"dir", "id: dir\nexec: {command: [bin/x]}\n", `:2: command "bin/x" is neither an absolute path nor a name in PATH`},
		"variable.yaml":  {"variable", "id: variable\nexec:\n  command:\n  - /bin/x\n  - ${HOME}\n", ":5: in command: unknown variable ${HOME}; known are CSI_ENDPOINT, CSI_SOCKET, NODE_ID, PLUGIN_ID, STATE_DIR, MOUNT_ROOT"},
		"brace.yaml":     {"brace", "id: brace\nexec: {command: [/bin/x], env: {A: '${NODE_ID'}}\n", `:2: in A: "${NODE_ID" has no closing brace`},
		"equals.yaml":    {"equals", "id: equals\nexec: {command: [/bin/x], env: {PW=hunter2}}\n", `:2: in env "PW=…" is no KEY: VALUE`},
		"env.yaml":       {"env", "id: env\nexec: {command: [/bin/x], env: {CSI_ENDPOINT: x}}\n", ":2: CSI_ENDPOINT is set by the agent"},
		"secret.yaml":    {"secret", "id: secret\nexec: {command: [/bin/x], env: {A: {file: /x, env: Y}}}\n", `:2: "A" names 2 secrets; it needs exactly one of file, credential, env`},
		"vault.yaml":     {"vault", "id: vault\nexec: {command: [/bin/x], env: {A: {vault: x}}}\n", `:2: unknown key "vault" in A; known are credential, env, file`},
		"second.yaml":    {"second.yaml", "id: second\nsocket: /s\n---\nid: third\nsocket: /t\n", ":3: a second document; each plugin has a file of its own"},
		// If two files have the same id, the agent uses the first file by name.
		"a-dup.yaml":  {"", "id: dup\nsocket: /no/dup\n", ""},
		"b-dup.yaml":  {"b-dup.yaml", "id: dup\nsocket: /no/dup2\n", `: plugin "dup" with the same type and instance is defined in ` + b.dir + "/etc/a-dup.yaml already"},
		"c-dup.yaml":  {"c-dup.yaml", "id: dup\ntype: controller\nsocket: /no/dup3\n", `: plugin "dup" is defined in ` + b.dir + "/etc/a-dup.yaml already, without a type; several parts of one plugin need a type each: node or controller"},
		"d-sock.yaml": {"sock", "id: sock\nsocket: /no/../no/dup\n", ": socket /no/dup is another plugin's already, in " + b.dir + "/etc/a-dup.yaml"},
		"a-unit.yaml": {"", "id: units\nunit: csi-test.service\n", ""},
		"b-unit.yaml": {"units2", "id: units2\nunit: csi-test.service\n", ": unit csi-test.service is another plugin's already, in " + b.dir + "/etc/a-unit.yaml"},
		// The agent must ignore these files.
		".hidden.yaml": {"", "nonsense", ""},
		"README":       {"", "nonsense", ""},
	}
	for name, r := range rows {
		b.file(name, r.content)
	}
	if err := os.Mkdir(filepath.Join(b.dir, "etc/folder.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	b.file("fake.yaml", b.fakeFile("", ""))
	b.start()
	b.await("fake", supervisor.Ready)
	want := []string{"fake", "dup", "units", "folder.yaml"}
	for name, r := range rows {
		if r.id == "" {
			continue
		}
		want = append(want, r.id)
		st := b.await(r.id, supervisor.Failed)
		path := filepath.Join(b.dir, "etc", name)
		if !strings.HasPrefix(st.Reason, path+r.want) || st.File != path {
			t.Errorf("%s: file %s, reason\n%s, want\n%s", name, st.File, st.Reason, path+r.want)
		}
	}
	if st := b.await("folder.yaml", supervisor.Failed); !strings.Contains(st.Reason, "not a regular file") {
		t.Errorf("folder: %q", st.Reason)
	}
	var got []string
	for _, st := range b.sup.Statuses() {
		got = append(got, st.ID)
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("plugins\n%v, want\n%v", got, want)
	}

	// When a bad file is corrected, the agent must start the plugin. When the file of a plugin is
	// removed that no volume ever used, the plugin must disappear.
	b.inUse.Store(true)
	b.file("none.yaml", strings.Replace(b.fakeFile("", ""), "id: fake", "id: none", 1))
	if err := os.Remove(filepath.Join(b.dir, "etc/empty.yaml")); err != nil {
		t.Fatal(err)
	}
	b.reload()
	b.await("none", supervisor.Ready)
	await(t, "the bad file's end", func() bool { _, err := b.sup.Status("empty.yaml"); return errors.Is(err, volume.ErrNotFound) })
}

func TestUnknownPlugin(t *testing.T) {
	b := newBench(t)
	b.start()
	_, clientErr := b.sup.Client("none")
	_, statusErr := b.sup.Status("none")
	_, logErr := b.sup.LogPath("none")
	for _, err := range []error{clientErr, statusErr, logErr} {
		if !errors.Is(err, volume.ErrNotFound) {
			t.Errorf("got %v", err)
		}
	}
	if v := b.sup.View("none"); v.Known || v.Ready {
		t.Errorf("view %+v", v)
	}
	// A caller that waits on Changed must be notified.
	changed := b.sup.Changed("none")
	b.file("x.yaml", "id: none\nsocket: /no/such\n")
	b.reload()
	<-changed
	if v := b.sup.View("none"); !v.Known {
		t.Errorf("view %+v", v)
	}
}

// TestChangedFileWaits checks that a changed plugin file comes into force only when no volume is
// staged through the plugin.
func TestChangedFileWaits(t *testing.T) {
	b := newBench(t)
	b.set("env", "")
	b.file("fake.yaml", b.fakeFile("    V: one\n", "health: {interval: 1h}\n"))
	b.start()
	first := b.await("fake", supervisor.Ready)
	b.inUse.Store(true)
	b.file("fake.yaml", b.fakeFile("    V: two\n", "health: {interval: 1h}\n"))
	b.reload()
	st := b.awaitThat("fake", "pending", func(st supervisor.Status) bool { return st.Pending != "" })
	if st.State != supervisor.Ready || st.PID != first.PID || !strings.Contains(st.Pending, "its file changed") || !strings.Contains(st.Pending, "on_change: restart") {
		t.Errorf("status %+v", st)
	}
	if v := b.sup.View("fake"); !v.Ready {
		t.Errorf("view %+v", v)
	}

	// The change must still wait after a restart of the agent and a crash of the plugin.
	b.stop()
	b.start()
	b.await("fake", supervisor.Ready)
	kill(t, first.PID)
	st = b.awaitThat("fake", "restarted", func(st supervisor.Status) bool { return st.State == supervisor.Ready && st.PID != first.PID })
	if st.Pending == "" || !strings.Contains(b.fake.text("env", ""), "V=one") {
		t.Errorf("the change is in force too early: %+v", st)
	}

	// When the last volume is detached, the change must come into force.
	b.inUse.Store(false)
	b.sup.Released("fake")
	st = b.awaitThat("fake", "changed", func(st supervisor.Status) bool { return st.State == supervisor.Ready && st.Pending == "" })
	if !strings.Contains(b.fake.text("env", ""), "V=two") || len(b.starts()) != 3 || !b.sup.View("fake").Ready {
		t.Errorf("status %+v, starts %v", st, b.starts())
	}

	// With on_change: restart, a change must not wait for volumes.
	b.inUse.Store(true)
	b.file("fake.yaml", b.fakeFile("    V: three\n", "health: {interval: 1h}\non_change: restart\n"))
	b.reload()
	await(t, "the third definition", func() bool { return strings.Contains(b.fake.text("env", ""), "V=three") })
	b.await("fake", supervisor.Ready)

	// If an operator requests a restart, a change must not wait for volumes either.
	b.file("fake.yaml", b.fakeFile("    V: four\n", "health: {interval: 1h}\n"))
	b.reload()
	b.awaitThat("fake", "pending", func(st supervisor.Status) bool { return st.Pending != "" })
	if err := b.sup.Restart("fake", true); err != nil {
		t.Fatal(err)
	}
	b.awaitThat("fake", "changed", func(st supervisor.Status) bool { return st.State == supervisor.Ready && st.Pending == "" })
	if !strings.Contains(b.fake.text("env", ""), "V=four") || !b.sup.View("fake").Ready {
		t.Error("the restart went by the old definition")
	}
	for _, pid := range b.starts()[:len(b.starts())-1] {
		if alive(pid) {
			t.Errorf("process %d is left", pid)
		}
	}
}

// TestVolumeComesInAtTheLastMoment checks a volume that starts to use a plugin just before the
// agent stops the plugin for a changed file. The agent must not stop the plugin.
func TestVolumeComesInAtTheLastMoment(t *testing.T) {
	b := newBench(t)
	var asked atomic.Int32
	b.opts.InUse = func(string) []string {
		if asked.Add(1) > 1 {
			return []string{"data"}
		}
		return nil
	}
	b.file("fake.yaml", b.fakeFile("", "health: {interval: 1h}\n"))
	b.start()
	first := b.await("fake", supervisor.Ready)
	changed := b.sup.Changed("fake")
	b.file("fake.yaml", b.fakeFile("    V: two\n", "health: {interval: 1h}\n"))
	b.reload()
	// a caller that found new calls blocked must be notified when calls are possible again
	<-changed
	if st := b.status("fake"); st.State != supervisor.Ready || st.PID != first.PID || st.Pending == "" || !b.sup.View("fake").Ready {
		t.Errorf("status %+v", st)
	}
}

// TestBrokenFileKeepsThePlugin checks that a mistake in a plugin file does not stop the running
// plugin.
func TestBrokenFileKeepsThePlugin(t *testing.T) {
	b := newBench(t)
	good := b.fakeFile("", "")
	b.file("fake.yaml", good)
	b.start()
	first := b.await("fake", supervisor.Ready)
	// the agent can read the id in the first file, but not in the second one
	for _, bad := range []string{good + "nonsense: 1\n", "id: [\n"} {
		b.file("fake.yaml", bad)
		b.reload()
		for range 2 { // before and after a restart of the agent
			st := b.await("fake", supervisor.Ready)
			if st.PID != first.PID || !strings.Contains(st.Pending, "its file cannot be used") || !strings.Contains(st.Pending, b.dir+"/etc/fake.yaml") {
				t.Errorf("status %+v", st)
			}
			b.stop()
			b.start()
		}
	}
	b.file("fake.yaml", good)
	b.reload()
	if st := b.await("fake", supervisor.Ready); st.Pending != "" || st.PID != first.PID {
		t.Errorf("status %+v", st)
	}
}

func TestRemovedFile(t *testing.T) {
	b := newBench(t)
	b.file("fake.yaml", b.fakeFile("", ""))
	b.start()
	first := b.await("fake", supervisor.Ready)
	b.inUse.Store(true)
	path := filepath.Join(b.dir, "etc/fake.yaml")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	b.reload()
	for range 2 { // before and after a restart of the agent
		st := b.await("fake", supervisor.Ready)
		if st.PID != first.PID || !strings.Contains(st.Pending, "its file was removed") {
			t.Errorf("status %+v", st)
		}
		b.stop()
		b.start()
	}
	b.await("fake", supervisor.Ready)
	b.inUse.Store(false)
	b.sup.Released("fake")
	await(t, "the plugin's end", func() bool { _, err := b.sup.Status("fake"); return errors.Is(err, volume.ErrNotFound) })
	if alive(first.PID) {
		t.Error("the process is left")
	}
	await(t, "the record's end", func() bool { return b.record(t, "fake").Definition == nil })
	if v := b.sup.View("fake"); v.Known || v.Info.Driver != "fake.test" {
		t.Errorf("what it was is forgotten: %+v", v)
	}
	// The next agent must not start the plugin again until there is a new file.
	b.stop()
	b.start()
	if all := b.sup.Statuses(); len(all) != 0 {
		t.Errorf("plugins %+v", all)
	}
	b.file("fake.yaml", b.fakeFile("", ""))
	b.reload()
	b.await("fake", supervisor.Ready)
}

// TestDisabledFile checks that a file with enabled: false counts as absent, that its mistakes are
// shown, and that the plugin starts when the file no longer says so.
func TestDisabledFile(t *testing.T) {
	b, _ := newRegistry(t)
	text := b.fakeFile("", "")
	b.file("fake.yaml", text+"enabled: false\n")
	b.file("bad.yaml", "id: bad\nenabled: false\nrestart: always\n")
	b.start()
	b.await("bad", supervisor.Failed)
	if all := b.sup.Statuses(); len(all) != 1 {
		t.Errorf("plugins %+v", all)
	}

	// A disabled file does not prevent a registration of the same id. A disabled text cannot be
	// registered.
	_, err := b.sup.Register(t.Context(), "f.yaml", []byte(text+"enabled: false\n"))
	expectRefused(t, err, volume.ErrRefused, "f.yaml has enabled: false; enable it first")
	b.register(text, definitions.Registered)
	must(t, b.deregister(false))

	b.file("fake.yaml", text+"enabled: true\n")
	b.reload()
	first := b.await("fake", supervisor.Ready)
	b.file("fake.yaml", text+"enabled: false\n")
	b.reload()
	await(t, "the plugin's end", func() bool { _, err := b.sup.Status("fake"); return errors.Is(err, volume.ErrNotFound) })
	if alive(first.PID) {
		t.Error("the process is left")
	}
}

// TestLocalFile checks that a plugin file may have the id of the bundled driver.
func TestLocalFile(t *testing.T) {
	b := newBench(t)
	b.opts.BuiltinArgv = []string{"/no/such/agent"}
	b.start()
	if st := b.await("local", supervisor.BackingOff); st.Runner != "builtin" {
		t.Errorf("status %+v", st)
	}
	b.file("x.yaml", strings.Replace(b.fakeFile("", ""), "id: fake", "id: local", 1))
	b.reload()
	if st := b.await("local", supervisor.Ready); st.Runner != "exec" {
		t.Errorf("status %+v", st)
	}
	if err := os.Remove(filepath.Join(b.dir, "etc/x.yaml")); err != nil {
		t.Fatal(err)
	}
	b.reload()
	st := b.awaitThat("local", "builtin again", func(st supervisor.Status) bool { return st.Runner == "builtin" })
	if pid := b.starts()[0]; alive(pid) {
		t.Errorf("process %d is left: %+v", pid, st)
	}
}

func TestPluginDirectory(t *testing.T) {
	b := newBench(t)
	b.opts.PluginDir = b.dir + "/none"
	b.start() // a missing plugin directory is not an error
	b.stop()
	b.file("plain", "")
	b.opts.PluginDir = b.dir + "/etc/plain"
	b.sup = supervisor.New(b.opts)
	b.run()
	if err := b.sup.Reload(); err == nil || !strings.Contains(err.Error(), "cannot read the plugin directory") {
		t.Errorf("reload: %v", err)
	}
}
