package supervisor_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/agent/supervisor/definitions"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// registry is a fake registry that stores definitions as text, like a database on disk.
type registry struct {
	defs [][]byte
	deny error
	// commit is called just before a deregistration is stored.
	commit func()
}

func (r *registry) LoadRegistered() (all []plugin.Definition, err error) {
	for _, data := range r.defs {
		var d plugin.Definition
		err = errors.Join(err, json.Unmarshal(data, &d))
		all = append(all, d)
	}
	return all, err
}

func (r *registry) Register(ctx context.Context, def plugin.Definition) error {
	if err := r.Deregister(ctx, []plugin.Definition{def}); err != nil {
		return err
	}
	data, err := json.Marshal(def)
	r.defs = append(r.defs, data)
	return err
}

func (r *registry) Deregister(_ context.Context, defs []plugin.Definition) error {
	if r.deny != nil {
		return r.deny
	}
	if r.commit != nil {
		r.commit()
	}
	r.defs = slices.DeleteFunc(r.defs, func(data []byte) bool {
		var d plugin.Definition
		return json.Unmarshal(data, &d) == nil && slices.ContainsFunc(defs, func(o plugin.Definition) bool {
			return d.ID == o.ID && d.Type == o.Type && d.Instance == o.Instance
		})
	})
	return nil
}

// newRegistry returns a bench whose agent has a registry.
func newRegistry(t *testing.T) (*bench, *registry) {
	t.Helper()
	b, r := newBench(t), &registry{}
	b.opts.Registry = r
	return b, r
}

// register registers the fake plugin, and waits until it is ready.
func (b *bench) register(text, outcome string) {
	b.t.Helper()
	asked := time.Now()
	reg, err := b.sup.Register(b.t.Context(), "given.yaml", []byte(text))
	if err != nil || reg.ID != "fake" || reg.Outcome != outcome {
		b.t.Fatalf("register: %+v, %v; want %q", reg, err, outcome)
	}
	must(b.t, b.sup.AwaitRegistered(within(b.t), reg, asked))
}

// deregister deregisters the fake plugin, and waits until it has ended.
func (b *bench) deregister(force bool) error {
	b.t.Helper()
	gone, err := b.sup.Deregister(b.t.Context(), "fake", force)
	if err != nil {
		return err
	}
	return gone(within(b.t))
}

// expectRefused checks that err has the given kind and contains the given words.
func expectRefused(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%v; want %v", err, kind)
	}
	for _, w := range words {
		if err != nil && !strings.Contains(err.Error(), w) {
			t.Errorf("%q lacks %q", err, w)
		}
	}
}

// TestRegister checks that a registered plugin works like a plugin from a file, and is kept when
// the agent restarts. After a deregistration, the plugin must not come back.
func TestRegister(t *testing.T) {
	b, r := newRegistry(t)
	text := b.fakeFile("", "health: {interval: 1h}\n")
	b.start()
	b.register(text, definitions.Registered)
	first := b.status("fake")
	if first.State != supervisor.Ready || !first.Registered || first.File != "" {
		t.Errorf("after the registration: %+v", first)
	}
	b.register(text+"# the same\n", definitions.Unchanged)
	b.reload()
	b.stop()
	b.start()
	if st := b.await("fake", supervisor.Ready); st.PID != first.PID || !st.Registered || len(b.starts()) != 1 {
		t.Errorf("the next agent has %+v, after %d starts", st, len(b.starts()))
	}

	b.inUse.Store(true)
	err := b.deregister(false)
	expectRefused(t, err, volume.ErrRefused, `in use, by "data"`)
	if hint(err) != "volctl plugin deregister fake --force" || !b.sup.View("fake").Ready {
		t.Errorf("hint %q, %+v", hint(err), b.sup.View("fake"))
	}
	b.inUse.Store(false)
	must(t, b.deregister(false))
	socket := filepath.Dir(first.Socket)
	if _, err := os.Lstat(socket); alive(first.PID) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is alive: %v; its socket's directory: %v", alive(first.PID), err)
	}
	if _, err := os.Stat(filepath.Join(b.dir, "d/plugins/fake/state")); err != nil {
		t.Error(err)
	}
	if len(r.defs) != 0 || b.record(t, "fake").Definition != nil {
		t.Errorf("on record are %s, %+v", r.defs, b.record(t, "fake"))
	}
	expectRefused(t, b.deregister(false), volume.ErrNotFound, `"fake"`)
	b.stop()
	b.start()
	if _, err := b.sup.Status("fake"); !errors.Is(err, volume.ErrNotFound) || len(b.starts()) != 1 {
		t.Errorf("the next agent: %v, %d starts", err, len(b.starts()))
	}
	b.register(text, definitions.Registered)
	must(t, b.deregister(false))
}

// TestRegisterChanged checks that a changed registration waits for volumes like a changed file.
func TestRegisterChanged(t *testing.T) {
	b, _ := newRegistry(t)
	b.set("env", "")
	b.start()
	b.register(b.fakeFile("    V: one\n", "health: {interval: 1h}\n"), definitions.Registered)
	first := b.status("fake")
	b.inUse.Store(true)
	// Register must return although the change waits for the volumes
	b.register(b.fakeFile("    V: two\n", "health: {interval: 1h}\n"), definitions.Updated)
	if st := b.status("fake"); st.PID != first.PID || !strings.HasPrefix(st.Pending, "its registration changed;") {
		t.Errorf("under a volume: %+v", st)
	}
	b.inUse.Store(false)
	b.sup.Released("fake")
	second := b.awaitThat("fake", "another", func(st supervisor.Status) bool { return st.PID != first.PID && st.State == supervisor.Ready })
	if second.Pending != "" || !strings.Contains(b.fake.text("env", ""), "V=two") {
		t.Errorf("with the volume gone: %+v", second)
	}
	b.register(b.fakeFile("    V: three\n", "health: {interval: 1h}\n"), definitions.Updated)
	third := b.status("fake")
	if third.PID == second.PID || !strings.Contains(b.fake.text("env", ""), "V=three") {
		t.Errorf("registered with nothing in use: %+v", third)
	}
	b.inUse.Store(true)
	b.register(b.fakeFile("    V: four\n", "health: {interval: 1h}\non_change: restart\n"), definitions.Updated)
	if st := b.status("fake"); st.PID == third.PID || !strings.Contains(b.fake.text("env", ""), "V=four") {
		t.Errorf("on_change: restart under a volume: %+v", st)
	}
	b.inUse.Store(false)
}

// TestDeregisterForced checks that a forced deregistration ends a plugin that volumes use, even if
// an earlier deregistration is waiting for the volumes. If the plugin is then registered again, it
// must serve the volumes.
func TestDeregisterForced(t *testing.T) {
	b, r := newRegistry(t)
	text := b.fakeFile("", "health: {interval: 1h}\n")
	b.start()
	b.register(text, definitions.Registered)
	b.inUse.Store(true)
	must(t, b.deregister(true))
	if pids := b.starts(); alive(pids[0]) || b.sup.View("fake").Known || b.record(t, "fake").Definition != nil {
		t.Errorf("after the end: %+v", b.record(t, "fake"))
	}
	b.stop()
	b.start()
	if b.sup.View("fake").Known || len(b.starts()) != 1 {
		t.Errorf("the next agent has it: %+v", b.sup.View("fake"))
	}
	b.register(text, definitions.Registered)
	b.stop()
	r.defs = nil // delete the definitions, as if the agent had died right after the commit
	b.start()
	st := b.await("fake", supervisor.Ready)
	if !strings.HasPrefix(st.Pending, "it was deregistered;") || len(b.starts()) != 2 {
		t.Errorf("%+v, %d starts", st, len(b.starts()))
	}
	expectRefused(t, b.sup.Stop("fake", true), volume.ErrRefused, "is deregistered")
	err := b.deregister(false)
	expectRefused(t, err, volume.ErrRefused, "deregistered")
	if hint(err) != "volctl plugin deregister fake --force" {
		t.Errorf("hint %q", hint(err))
	}
	must(t, b.deregister(true))
	if alive(st.PID) || b.sup.View("fake").Known {
		t.Errorf("it was not forced: %+v", b.sup.View("fake"))
	}
}

// TestVolumeComesInWhileDeregistering checks a volume that finds new calls blocked while a
// deregistration is being stored. The volume must be notified when calls are possible again.
func TestVolumeComesInWhileDeregistering(t *testing.T) {
	b, r := newRegistry(t)
	b.start()
	b.register(b.fakeFile("", "health: {interval: 1h}\n"), definitions.Registered)
	var changed <-chan struct{}
	r.commit = func() {
		b.inUse.Store(true)
		changed = b.sup.Changed("fake")
		if b.sup.View("fake").Ready {
			t.Error("the door is open while a deregister is being stored")
		}
	}
	_, err := b.sup.Deregister(t.Context(), "fake", false)
	must(t, err)
	select {
	case <-changed:
	case <-within(t).Done():
		t.Error("nobody told that the plugin can be used again")
	}
	await(t, "the plugin to be of use", func() bool { return b.sup.View("fake").Ready })
	b.inUse.Store(false)
}

// TestRegisterRefused checks that Register refuses a text with mistakes, a plugin that a file
// defines, and a definition that cannot be stored.
func TestRegisterRefused(t *testing.T) {
	b, r := newRegistry(t)
	b.opts.BuiltinArgv = nil
	text := b.fakeFile("", "health: {interval: 1h}\n")
	b.file("a.yaml", text)
	b.file("bad.yaml", "id: bad\nexex: {}\n")
	b.start()
	b.await("fake", supervisor.Ready)
	for text, want := range map[string]struct {
		kind  error
		words string
	}{
		text:                                   {volume.ErrRefused, `plugin "fake" is defined in ` + b.dir + "/etc/a.yaml"},
		"id: bad\nsocket: /x\n":                {volume.ErrRefused, b.dir + `/etc/bad.yaml:2: unknown key "exex"`},
		"id: x\nexex: {}\n":                    {volume.ErrInvalid, `given.yaml:2: unknown key "exex"`},
		"id: x/y\nsocket: /x\n":                {volume.ErrInvalid, "given.yaml:1: "},
		"id: x\nsocket: /x\nunit: a.service\n": {volume.ErrInvalid, "given.yaml:3: socket and unit are given at once"},
		"id: x\nbuiltin: local\n":              {volume.ErrRefused, "given.yaml: this agent has no builtin plugins"},
		"":                                     {volume.ErrInvalid, "given.yaml:1: the file is empty"},
	} {
		_, err := b.sup.Register(t.Context(), "given.yaml", []byte(text))
		expectRefused(t, err, want.kind, want.words)
	}
	_, err := b.sup.Deregister(t.Context(), "fake", true)
	expectRefused(t, err, volume.ErrRefused, "to remove it, remove its file "+b.dir+"/etc/a.yaml")

	r.deny = errors.New("no space left")
	if _, err := b.sup.Register(t.Context(), "given.yaml", []byte("id: y\nsocket: /y\n")); !errors.Is(err, r.deny) {
		t.Errorf("not stored: %v", err)
	}
	b.reload()
	if b.sup.View("y").Known || len(r.defs) != 0 {
		t.Errorf("it is there all the same: %+v", b.sup.View("y"))
	}
}

// TestFileOfRegistered checks that a new plugin file does not replace a registered plugin. The
// error about this file must name the fix.
func TestFileOfRegistered(t *testing.T) {
	b, r := newRegistry(t)
	text := b.fakeFile("", "health: {interval: 1h}\n")
	b.start()
	b.register(text, definitions.Registered)
	first := b.status("fake")
	b.file("late.yaml", text)
	b.reload()
	st := b.await("late.yaml", supervisor.Failed)
	if want := b.dir + `/etc/late.yaml: plugin "fake" is registered at run time; deregister it first: volctl plugin deregister fake`; st.Reason != want {
		t.Errorf("reason %q, want %q", st.Reason, want)
	}
	if now := b.status("fake"); now.PID != first.PID || !now.Registered {
		t.Errorf("the registered one: %+v", now)
	}
	r.deny = errors.New("no space left")
	if _, err := b.sup.Deregister(t.Context(), "fake", false); !errors.Is(err, r.deny) || !b.sup.View("fake").Ready {
		t.Errorf("not stored: %v, %+v", err, b.sup.View("fake"))
	}
	r.deny = nil
	must(t, b.deregister(false))
	b.awaitThat("fake", "the file's", func(st supervisor.Status) bool { return st.File != "" && st.State == supervisor.Ready })
	if got := b.starts(); len(got) != 1 {
		t.Errorf("the file says the same, and it was started %d times", len(got))
	}
}

// TestBadFileOfRegistered checks a bad file of a registered plugin. The agent must refuse a
// deregistration, because the bad file would keep the plugin running with the earlier definition.
func TestBadFileOfRegistered(t *testing.T) {
	b, r := newRegistry(t)
	b.start()
	b.register(b.fakeFile("", "health: {interval: 1h}\n"), definitions.Registered)
	b.file("late.yaml", "id: fake\nexex: {}\n")
	b.reload()
	b.await("late.yaml", supervisor.Failed)
	for _, force := range []bool{false, true} {
		expectRefused(t, b.deregister(force), volume.ErrRefused, `a file with a mistake also defines plugin "fake"`, "unknown key", "fix that file, or remove it")
	}
	if len(r.defs) != 1 || !b.sup.View("fake").Ready {
		t.Errorf("after a refusal %d are registered, and it is %+v", len(r.defs), b.sup.View("fake"))
	}
	must(t, os.Remove(b.dir+"/etc/late.yaml"))
	must(t, b.deregister(false))
	if b.sup.View("fake").Known {
		t.Error("it is there all the same")
	}
}

// registerPart registers one part of the fake plugin.
func (b *bench) registerPart(file, kind, instance string) {
	b.t.Helper()
	b.part(file, kind, instance, "health: {interval: 1h}\n")
	path := filepath.Join(b.dir, "etc", file)
	text, err := os.ReadFile(path)
	must(b.t, errors.Join(err, os.Remove(path)))
	b.register(string(text), definitions.Registered)
}

// TestRegisterParts checks that each part of a plugin can be registered separately, and used
// together with parts from files. A deregistration must remove all registered parts and keep the
// parts from files.
func TestRegisterParts(t *testing.T) {
	b, r := newRegistry(t)
	b.start()
	b.registerPart("n.yaml", "node", "")
	b.registerPart("a.yaml", "controller", "a")
	b.part("b.yaml", "controller", "b", "health: {interval: 1h}\n")
	b.reload()
	node, a, other := b.partIs("node", supervisor.Ready), b.partIs("controller a", supervisor.Ready), b.partIs("controller b", supervisor.Ready)
	if !node.Registered || !a.Registered || other.Registered || len(r.defs) != 2 {
		t.Errorf("node %+v\na %+v\nb %+v", node, a, other)
	}
	_, err := b.sup.Register(t.Context(), "given.yaml", []byte("id: fake\nsocket: /x\n"))
	expectRefused(t, err, volume.ErrRefused, `given.yaml: plugin "fake" is defined in`, "need a type each")
	_, err = b.sup.Register(t.Context(), "given.yaml", []byte("id: fake\ntype: controller\ninstance: b\nsocket: /x\n"))
	expectRefused(t, err, volume.ErrRefused, `plugin "fake" is defined in `+b.dir+"/etc/b.yaml")

	b.inUse.Store(true)
	expectRefused(t, b.deregister(false), volume.ErrRefused, `in use, by "data"`)
	b.inUse.Store(false)
	must(t, b.deregister(false))
	left := func() {
		t.Helper()
		st := b.partIs("controller b", supervisor.Ready)
		if whole := b.status("fake"); len(whole.Parts) != 1 || st.PID != other.PID || alive(node.PID) || alive(a.PID) || len(r.defs) != 0 {
			t.Errorf("left are %+v", whole.Parts)
		}
	}
	left()
	b.stop()
	b.start()
	left()

	b.registerPart("a.yaml", "controller", "a")
	b.inUse.Store(true) // volumes must not prevent this, because another controller is ready
	must(t, b.deregister(false))
	left()
	b.inUse.Store(false)
}
