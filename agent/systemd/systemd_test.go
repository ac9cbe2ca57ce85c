package systemd_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/volagent/volagent/agent/systemd"
)

const (
	managerAt   = dbus.ObjectPath("/org/freedesktop/systemd1")
	managerName = "org.freedesktop.systemd1.Manager"
	unitAt      = dbus.ObjectPath("/org/freedesktop/systemd1/unit/a_2eservice")
)

// manager is a fake systemd that implements only the methods that these tests need. It has its own
// message bus.
type manager struct {
	t       *testing.T
	address string
	conn    *dbus.Conn

	mu     sync.Mutex
	next   uint32
	start  func(job dbus.ObjectPath) *dbus.Error // called for each start; an error makes the start fail
	props  map[string]dbus.Variant
	asked  int
	change func() // called before the fake answers the second query about the unit
}

func newManager(t *testing.T) *manager {
	t.Helper()
	dir := t.TempDir()
	m := &manager{t: t, address: "unix:path=" + filepath.Join(dir, "bus")}
	conf := `<busconfig><type>custom</type><listen>` + m.address + `</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`
	if err := os.WriteFile(filepath.Join(dir, "conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command("dbus-daemon", "--config-file="+filepath.Join(dir, "conf"), "--nofork", "--nopidfile")
	if err := daemon.Start(); err != nil {
		t.Fatal("dbus-daemon is needed; scripts/setup test installs it: ", err)
	}
	t.Cleanup(func() {
		if err := daemon.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = daemon.Wait() // the daemon was killed, so Wait returns an error
	})
	for end := time.Now().Add(60 * time.Second); m.conn == nil; {
		conn, err := dbus.Connect(m.address)
		if err == nil {
			m.conn = conn
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Cleanup(func() { _ = m.conn.Close() }) // the test may have closed the connection already
	for _, err := range []error{
		m.conn.ExportMethodTable(map[string]any{
			"Subscribe": func() *dbus.Error { return nil }, "StartUnit": m.Start, "StopUnit": m.Start,
			"GetUnit": func(string) (dbus.ObjectPath, *dbus.Error) { return unitAt, nil },
		}, managerAt, managerName),
		m.conn.ExportMethodTable(map[string]any{"GetAll": m.GetAll}, unitAt, "org.freedesktop.DBus.Properties"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.conn.RequestName("org.freedesktop.systemd1", dbus.NameFlagDoNotQueue); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *manager) bus() *systemd.Bus {
	b := systemd.New(systemd.Options{Dial: func(o ...dbus.ConnOption) (*dbus.Conn, error) { return dbus.Connect(m.address, o...) }})
	m.t.Cleanup(b.Close)
	return b
}

// Start creates a job and returns it.
func (m *manager) Start(_, _ string) (dbus.ObjectPath, *dbus.Error) {
	m.mu.Lock()
	m.next++
	job, start := dbus.ObjectPath("/org/freedesktop/systemd1/job/"+string(rune('0'+m.next))), m.start
	m.mu.Unlock()
	return job, start(job)
}

// starts sets the function that the manager calls for each start.
func (m *manager) starts(start func(job dbus.ObjectPath) *dbus.Error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.start = start
}

// is sets the properties that the manager reports about its unit.
func (m *manager) is(props map[string]dbus.Variant) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.props = props
}

// removed sends the signal JobRemoved with the result of a job.
func (m *manager) removed(job dbus.ObjectPath, result string) {
	if err := m.conn.Emit(managerAt, managerName+".JobRemoved", uint32(1), job, "a.service", result); err != nil {
		m.t.Error(err)
	}
}

// GetAll returns the properties of the unit and of the service in one map.
func (m *manager) GetAll(string) (map[string]dbus.Variant, *dbus.Error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	if m.asked == 2 && m.change != nil {
		m.change()
	}
	return m.props, nil
}

// TestJobResult checks that Start returns the result of its own job. The result may arrive before
// systemd's answer to the request, or long after it. Start must ignore the results of other jobs.
func TestJobResult(t *testing.T) {
	m := newManager(t)
	b := m.bus()
	for what, tt := range map[string]struct {
		start  func(dbus.ObjectPath) *dbus.Error
		result string
	}{
		"before the answer": {func(job dbus.ObjectPath) *dbus.Error { m.removed(job, "failed"); return nil }, "failed"},
		"after the answer": {func(job dbus.ObjectPath) *dbus.Error {
			m.removed(job+"0", "another's")
			time.AfterFunc(200*time.Millisecond, func() { m.removed(job, "done") })
			return nil
		}, systemd.JobDone},
	} {
		m.starts(tt.start)
		if result, err := b.Start(t.Context(), "a.service"); err != nil || result != tt.result {
			t.Errorf("%s: %q, %v", what, result, err)
		}
	}
}

// TestJobWithoutResult checks three cases in which a job has no result: the caller's context ends,
// systemd refuses the job, or the connection is lost. The wait for the job must end in each case.
// Only the refusal counts as an answer of systemd.
func TestJobWithoutResult(t *testing.T) {
	m := newManager(t)
	b := m.bus()
	m.starts(func(dbus.ObjectPath) *dbus.Error {
		return dbus.NewError("org.freedesktop.systemd1.NoSuchUnit", []any{"no"})
	})
	if _, err := b.Start(t.Context(), "a.service"); !systemd.IsAnswer(err) {
		t.Errorf("a refusal: %v", err)
	}
	if err := b.Stop(t.Context(), "a.service"); err != nil {
		t.Errorf("a stop of what is not loaded: %v", err)
	}
	m.starts(func(dbus.ObjectPath) *dbus.Error { return nil })
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := b.Start(short, "a.service"); !errors.Is(err, context.DeadlineExceeded) || systemd.IsAnswer(err) {
		t.Errorf("no result: %v", err)
	}
	m.starts(func(dbus.ObjectPath) *dbus.Error {
		time.AfterFunc(100*time.Millisecond, b.Close)
		return nil
	})
	if _, err := b.Start(t.Context(), "a.service"); err == nil || systemd.IsAnswer(err) {
		t.Errorf("a lost connection: %v", err)
	}
}

// TestServiceOfOneMoment checks that the state of a service is consistent, even if the unit changes
// between the two queries that read the state.
func TestServiceOfOneMoment(t *testing.T) {
	m := newManager(t)
	state := func(active string, pid uint32) map[string]dbus.Variant {
		return map[string]dbus.Variant{
			"Id": dbus.MakeVariant("a.service"), "LoadState": dbus.MakeVariant("loaded"),
			"ActiveState": dbus.MakeVariant(active), "SubState": dbus.MakeVariant(""), "MainPID": dbus.MakeVariant(pid),
		}
	}
	m.mu.Lock()
	m.props, m.change = state("activating", 0), func() { m.props = state("active", 7) }
	m.mu.Unlock()
	s, err := m.bus().Service(t.Context(), "a.service", false)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil || s.Active != "active" || s.MainPID != 7 || m.asked < 4 {
		t.Errorf("%+v, %v, after %d questions", s, err, m.asked)
	}
}

// TestServiceQueued checks that the state of a stopped unit shows whether systemd has queued a job
// to start the unit.
func TestServiceQueued(t *testing.T) {
	type job struct {
		ID   uint32
		Path dbus.ObjectPath
	}
	m := newManager(t)
	b := m.bus()
	for id, queued := range map[uint32]bool{0: false, 7: true} {
		m.is(map[string]dbus.Variant{
			"Id": dbus.MakeVariant("a.service"), "ActiveState": dbus.MakeVariant("inactive"), "Job": dbus.MakeVariant(job{id, managerAt}),
		})
		if s, err := b.Service(t.Context(), "a.service", false); err != nil || !s.Down() || s.Queued != queued {
			t.Errorf("with job %d: %+v, %v", id, s, err)
		}
	}
}

// TestGoesDown checks that a host counts as shutting down as soon as systemd has a job for the
// shutdown. Without an answer, GoesDown must return an error.
func TestGoesDown(t *testing.T) {
	type job struct {
		ID   uint32
		Path dbus.ObjectPath
	}
	m := newManager(t)
	b := m.bus()
	for _, tt := range []struct {
		active string
		job    uint32
		down   bool
	}{{"inactive", 0, false}, {"inactive", 7, true}, {"active", 0, true}} {
		m.is(map[string]dbus.Variant{
			"Id": dbus.MakeVariant("shutdown.target"), "ActiveState": dbus.MakeVariant(tt.active), "Job": dbus.MakeVariant(job{tt.job, managerAt}),
		})
		if down, err := b.GoesDown(t.Context()); err != nil || down != tt.down {
			t.Errorf("%+v: %t, %v", tt, down, err)
		}
	}
	b.Close()
	if down, err := b.GoesDown(t.Context()); err == nil || down {
		t.Errorf("without systemd: %t, %v", down, err)
	}
}

// TestWatch checks that a Watch reports changes of its own unit, ignores other units, and reports a
// lost connection.
func TestWatch(t *testing.T) {
	m := newManager(t)
	b := m.bus()
	a, other := b.Watch("a.service"), b.Watch("b.service")
	if _, err := b.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.conn.Emit(unitAt, "org.freedesktop.DBus.Properties.PropertiesChanged", "org.freedesktop.systemd1.Unit", map[string]dbus.Variant{}, []string{}); err != nil {
		t.Fatal(err)
	}
	<-a.C
	if names, all := a.Take(); len(names) != 1 || names[0] != "a.service" || all {
		t.Errorf("%q, %t", names, all)
	}
	b.Close()
	<-a.C
	<-other.C
	if names, all := other.Take(); len(names) != 0 || !all {
		t.Errorf("%q, %t", names, all)
	}
}

// TestNone checks that the error is ErrNone on a host that was not booted with systemd.
func TestNone(t *testing.T) {
	if systemd.Booted() {
		t.Skip("this host was booted with systemd")
	}
	b := systemd.New(systemd.Options{})
	defer b.Close()
	if _, err := b.Service(t.Context(), "a.service", true); !errors.Is(err, systemd.ErrNone) {
		t.Errorf("%v", err)
	}
	t.Setenv("INVOCATION_ID", "x")
	if systemd.InService() {
		t.Error("this is a service of a systemd that is not there")
	}
}
