package owner_test

import (
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/volagent/volagent/agent/owner"
	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/volmgr/volume"
)

// bus is a message bus that only one test uses.
type bus struct {
	t       *testing.T
	dir     string
	daemon  *exec.Cmd
	address string
}

func newBus(t *testing.T) *bus {
	t.Helper()
	if _, err := exec.LookPath("dbus-daemon"); err != nil {
		t.Fatal("dbus-daemon is needed; scripts/setup test installs it: ", err)
	}
	b := &bus{t: t, dir: t.TempDir()}
	b.address = "unix:path=" + filepath.Join(b.dir, "bus")
	conf := `<busconfig><type>custom</type><listen>` + b.address + `</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`
	if err := os.WriteFile(filepath.Join(b.dir, "conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.stop)
	b.start()
	return b
}

// start starts the bus and waits until it accepts connections.
func (b *bus) start() {
	b.t.Helper()
	b.daemon = exec.Command("dbus-daemon", "--config-file="+filepath.Join(b.dir, "conf"), "--nofork", "--nopidfile")
	if err := b.daemon.Start(); err != nil {
		b.t.Fatal(err)
	}
	await(b.t, "a bus", func() bool {
		conn, err := dbus.Connect(b.address)
		return err == nil && conn.Close() == nil
	})
}

func (b *bus) stop() {
	if b.daemon != nil {
		end(b.t, b.daemon)
	}
	b.daemon = nil
	if err := os.Remove(filepath.Join(b.dir, "bus")); err != nil && !errors.Is(err, os.ErrNotExist) {
		b.t.Error(err)
	}
}

func (b *bus) connect(opts ...dbus.ConnOption) (*dbus.Conn, error) {
	return dbus.Connect(b.address, opts...)
}

// systemd returns a connection to the fake systemd on the bus.
func (b *bus) systemd() *systemd.Bus {
	s := systemd.New(systemd.Options{Dial: b.connect})
	b.t.Cleanup(s.Close)
	return s
}

// first and second are invocation ids.
var (
	first  = strings.Repeat("a1", 16)
	second = strings.Repeat("b2", 16)
)

// manager fakes the part of systemd that the watcher uses. Like systemd, it sends signals only
// after a client has subscribed.
type manager struct {
	t    *testing.T
	conn *dbus.Conn

	mu         sync.Mutex
	units      map[string]unit
	subscribed bool
	mute       bool // all signals get lost
	hang       chan struct{}
	questions  int
}

type unit struct{ active, sub, invocation string }

func newSystemd(t *testing.T, b *bus) *manager {
	t.Helper()
	s := &manager{t: t, units: map[string]unit{}}
	s.join(b)
	return s
}

// join requests the name of systemd on the bus, as systemd does after a re-execution.
func (s *manager) join(b *bus) {
	s.t.Helper()
	conn, err := b.connect()
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() }) // the test may have closed the connection already
	s.mu.Lock()
	s.conn, s.subscribed = conn, false
	s.mu.Unlock()
	for _, err := range []error{
		conn.ExportMethodTable(map[string]any{"Subscribe": s.Subscribe, "GetUnit": s.GetUnit}, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"),
		conn.ExportSubtreeMethodTable(map[string]any{"GetAll": s.GetAll, "Get": s.Get}, "/org/freedesktop/systemd1/unit", "org.freedesktop.DBus.Properties"),
	} {
		if err != nil {
			s.t.Fatal(err)
		}
	}
	if _, err := conn.RequestName("org.freedesktop.systemd1", dbus.NameFlagDoNotQueue); err != nil {
		s.t.Fatal(err)
	}
}

func (s *manager) Subscribe() *dbus.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscribed = true
	return nil
}

func path(name string) dbus.ObjectPath {
	escape := strings.NewReplacer(".", "_2e", "-", "_2d", "@", "_40")
	return dbus.ObjectPath("/org/freedesktop/systemd1/unit/" + escape.Replace(name))
}

func (s *manager) GetUnit(name string) (dbus.ObjectPath, *dbus.Error) {
	s.mu.Lock()
	hang := s.hang
	s.questions++
	s.mu.Unlock()
	if hang != nil {
		<-hang
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == "alias.service" {
		name = "web-1.service"
	}
	if !strings.Contains(name, ".") {
		return "/", dbus.NewError("org.freedesktop.DBus.Error.InvalidArgs", []any{"Unit name " + name + " is not valid."})
	}
	if _, ok := s.units[name]; !ok {
		return "/", dbus.NewError("org.freedesktop.systemd1.NoSuchUnit", []any{"Unit " + name + " not loaded."})
	}
	return path(name), nil
}

func (s *manager) GetAll(msg dbus.Message, _ string) (map[string]dbus.Variant, *dbus.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, _ := msg.Headers[dbus.FieldPath].Value().(dbus.ObjectPath)
	for name, u := range s.units {
		if path(name) == at {
			id, err := hex.DecodeString(u.invocation)
			if err != nil {
				return nil, dbus.MakeFailedError(err)
			}
			return map[string]dbus.Variant{
				"Id": dbus.MakeVariant(name), "ActiveState": dbus.MakeVariant(u.active),
				"SubState": dbus.MakeVariant(u.sub), "InvocationID": dbus.MakeVariant(id),
			}, nil
		}
	}
	return nil, dbus.MakeFailedError(errors.New("no such object"))
}

func (s *manager) Get(_, _ string) (dbus.Variant, *dbus.Error) {
	return dbus.MakeVariant(uint32(os.Getpid())), nil
}

// set changes a unit and sends a signal about it.
func (s *manager) set(name, active, sub, invocation string) {
	s.t.Helper()
	s.mu.Lock()
	s.units[name] = unit{active, sub, invocation}
	s.mu.Unlock()
	s.emit(path(name), "org.freedesktop.DBus.Properties.PropertiesChanged", "org.freedesktop.systemd1.Unit", map[string]dbus.Variant{"ActiveState": dbus.MakeVariant(active)}, []string{})
}

func (s *manager) emit(at dbus.ObjectPath, name string, args ...any) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.subscribed || s.mute {
		return
	}
	if err := s.conn.Emit(at, name, args...); err != nil {
		s.t.Error(err)
	}
}

func (s *manager) with(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func ofUnit(name string) volume.Owner { return volume.Owner{Kind: volume.OwnerUnit, Unit: name} }

func resolvedUnit(t *testing.T, w *owner.Watcher, name string) volume.Owner {
	t.Helper()
	o, err := w.Resolve(t.Context(), ofUnit(name))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestUnitEnds checks which events count as the end of a unit's invocation. The watcher must notice
// each such event as soon as systemd sends any signal about the unit.
func TestUnitEnds(t *testing.T) {
	b := newBus(t)
	sd := newSystemd(t, b)
	w := open(t, owner.Options{Bus: b.systemd()})
	const name = "web-1.service"
	for how, finish := range map[string]func(){
		"stopped":               func() { sd.set(name, "inactive", "dead", first) },
		"failed":                func() { sd.set(name, "failed", "failed", first) },
		"waits to be restarted": func() { sd.set(name, "activating", "auto-restart", first) },
		"started again":         func() { sd.set(name, "active", "running", second) },
		"starting again":        func() { sd.set(name, "activating", "start-pre", second) },
		"unloaded": func() {
			sd.with(func() { delete(sd.units, name) })
			sd.emit(managerAt, managerName+".UnitRemoved", name, path(name))
		},
		"stopped, told by a job": func() {
			sd.with(func() { sd.units[name] = unit{"inactive", "dead", first} })
			sd.emit(managerAt, managerName+".JobRemoved", uint32(1), dbus.ObjectPath("/job/1"), name, "done")
		},
	} {
		sd.set(name, "activating", "start-pre", first)
		w.Keep(func() []volume.Owner { return nil })
		o := resolvedUnit(t, w, name)
		if o.Invocation != first || o.Boot != boot || o.Unit != name {
			t.Fatalf("%s: %+v", how, o)
		}
		for _, state := range [][2]string{{"active", "running"}, {"reloading", "reload"}, {"deactivating", "stop-sigterm"}, {"deactivating", "stop-post"}} {
			sd.set(name, state[0], state[1], first)
			w.Check(t.Context(), []volume.Owner{o})
			if v := w.View(o); w.Gone(o) || v.Life != volume.LifeRunning || v.PID != os.Getpid() || v.Command == "" {
				t.Fatalf("%s: while it is %v: %+v", how, state, v)
			}
		}
		finish()
		ended(t, w, o)
	}
}

const (
	managerAt   = dbus.ObjectPath("/org/freedesktop/systemd1")
	managerName = "org.freedesktop.systemd1.Manager"
)

// TestUnitStartedAgain checks that a restarted unit can own new claims. Its earlier invocation
// counts as gone at once, even without a signal.
func TestUnitStartedAgain(t *testing.T) {
	b := newBus(t)
	sd := newSystemd(t, b)
	sd.mute = true
	w := open(t, owner.Options{Bus: b.systemd()})
	sd.set("web-1.service", "active", "running", first)
	was := resolvedUnit(t, w, "web-1.service")
	sd.set("web-1.service", "activating", "start", second)
	now := resolvedUnit(t, w, "alias.service")
	if now.Unit != "web-1.service" || now.Invocation != second || !w.Gone(was) || w.Gone(now) {
		t.Errorf("was %+v, gone: %t; is %+v, gone: %t", was, w.Gone(was), now, w.Gone(now))
	}
}

// TestResolveUnit checks that the error gives the reason why a unit cannot own a claim.
func TestResolveUnit(t *testing.T) {
	b := newBus(t)
	sd := newSystemd(t, b)
	w := open(t, owner.Options{Bus: b.systemd()})
	for _, tt := range []struct {
		u     unit
		ask   string
		words string
	}{
		{unit{"inactive", "dead", first}, "", "it is inactive (dead)"},
		{unit{"failed", "failed", first}, "", "it is failed (failed)"},
		{unit{"deactivating", "stop-sigterm", first}, "", "it is deactivating"},
		{unit{"activating", "auto-restart", first}, "", "it is activating (auto-restart)"},
		{unit{"active", "running", second}, first, "it has ended, and the unit was started again"},
		{unit{"active", "plugged", ""}, "", "no invocation id"},
		{unit{"active", "running", first}, "", ""},
		{unit{"active", "running", first}, first, ""},
		{unit{"reloading", "reload", first}, first, ""},
	} {
		sd.set("a.service", tt.u.active, tt.u.sub, tt.u.invocation)
		ask := ofUnit("a.service")
		ask.Invocation = tt.ask
		_, err := w.Resolve(t.Context(), ask)
		if tt.words == "" && err != nil || tt.words != "" && (!errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), tt.words)) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
	if _, err := w.Resolve(t.Context(), ofUnit("b.service")); !errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), "it is not loaded") {
		t.Errorf("a unit that is not loaded: %v", err)
	}
	if _, err := w.Resolve(t.Context(), ofUnit("rubbish")); !errors.Is(err, volume.ErrInvalid) {
		t.Errorf("a name that is none: %v", err)
	}
}

// TestLostSignal checks that the watcher notices the end of a unit even if the signal from systemd
// gets lost. In this case, the watcher finds out when it next asks systemd about all units.
func TestLostSignal(t *testing.T) {
	b := newBus(t)
	sd := newSystemd(t, b)
	sd.mute = true
	w := open(t, owner.Options{Bus: b.systemd(), AskEvery: 100 * time.Millisecond})
	sd.set("a.service", "active", "running", first)
	o := resolvedUnit(t, w, "a.service")
	await(t, "what the watch began with", func() (over bool) {
		sd.with(func() { over = sd.questions > 4 })
		return over
	})
	sd.set("a.service", "inactive", "dead", first)
	ended(t, w, o)
}

// TestBusComesBack checks a watcher that cannot reach the bus. No owner counts as gone, and a unit
// can own a claim only if the caller states the unit's invocation. When the bus returns, the
// watcher notices all ends that it missed.
func TestBusComesBack(t *testing.T) {
	b := newBus(t)
	sd := newSystemd(t, b)
	w := open(t, owner.Options{Bus: b.systemd()})
	sd.set("a.service", "active", "running", first)
	sd.set("b.service", "active", "running", first)
	a := resolvedUnit(t, w, "a.service")
	b.stop()
	await(t, "the loss of the bus", func() bool { return w.View(a).Life == volume.LifeUnknown })
	if _, err := w.Resolve(t.Context(), ofUnit("b.service")); !errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), "systemd does not answer") {
		t.Errorf("a unit that nobody answers for: %v", err)
	}
	ask := ofUnit("b.service")
	ask.Invocation = first
	other, err := w.Resolve(t.Context(), ask)
	if err != nil || other.Invocation != first {
		t.Errorf("an invocation that nobody answers for: %+v, %v", other, err)
	}
	w.Check(t.Context(), []volume.Owner{a, other})
	if w.Gone(a) || w.Gone(other) {
		t.Error("somebody is gone because nobody answers")
	}
	sd.with(func() { sd.units["a.service"] = unit{"inactive", "dead", first} })
	b.start()
	sd.join(b)
	ended(t, w, a)
	await(t, "an answer about the other", func() bool { return w.View(other).Life == volume.LifeRunning })
	// The watcher must also receive signals on the new connection.
	sd.set("b.service", "inactive", "dead", first)
	ended(t, w, other)
}

// TestSystemdReexecuted checks that the watcher subscribes again after systemd was re-executed.
func TestSystemdReexecuted(t *testing.T) {
	b := newBus(t)
	sd := newSystemd(t, b)
	w := open(t, owner.Options{Bus: b.systemd()})
	sd.set("a.service", "active", "running", first)
	o := resolvedUnit(t, w, "a.service")
	if err := sd.conn.Close(); err != nil {
		t.Fatal(err)
	}
	sd.join(b)
	subscribed := false
	await(t, "another subscription", func() bool {
		sd.with(func() { subscribed = sd.subscribed })
		return subscribed
	})
	if w.Gone(o) {
		t.Fatal("it is gone because systemd was executed anew")
	}
	sd.set("a.service", "inactive", "dead", first)
	ended(t, w, o)
}

// TestSystemdHangs checks that calls return after a short time if systemd hangs. Meanwhile, no
// owner counts as gone.
func TestSystemdHangs(t *testing.T) {
	b := newBus(t)
	sd := newSystemd(t, b)
	w := open(t, owner.Options{Bus: b.systemd()})
	sd.set("a.service", "active", "running", first)
	o := resolvedUnit(t, w, "a.service")
	hang := make(chan struct{})
	sd.with(func() { sd.hang = hang })
	defer close(hang)
	begun := time.Now()
	_, err := w.Resolve(t.Context(), ofUnit("b.service"))
	w.Check(t.Context(), []volume.Owner{o})
	if took := time.Since(begun); !errors.Is(err, volume.ErrRefused) || took > 15*time.Second {
		t.Errorf("after %v: %v", took, err)
	}
	if w.Gone(o) {
		t.Error("it is gone because nobody answers")
	}
}

// TestUnitsAtRest checks that the watcher sends no request to systemd while it watches no unit.
func TestUnitsAtRest(t *testing.T) {
	b := newBus(t)
	sd := newSystemd(t, b)
	w := open(t, owner.Options{Bus: b.systemd(), AskEvery: 10 * time.Millisecond})
	asked := func() (n int) {
		sd.with(func() { n = sd.questions })
		return n
	}
	sd.set("a.service", "active", "running", first)
	resolvedUnit(t, w, "a.service")
	n := asked()
	await(t, "more questions", func() bool { return asked() > n+3 })
	w.Keep(func() []volume.Owner { return nil })
	n = asked()
	time.Sleep(200 * time.Millisecond)
	if got := asked(); got > n+1 {
		t.Errorf("%d questions about nobody", got-n)
	}
}
