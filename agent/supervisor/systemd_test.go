package supervisor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/agent/systemd"
)

// noBus returns a connection to systemd that cannot be opened: each attempt fails with err.
func noBus(t *testing.T, err error) *systemd.Bus {
	s := systemd.New(systemd.Options{Dial: func(...dbus.ConnOption) (*dbus.Conn, error) { return nil, err }})
	t.Cleanup(s.Close)
	return s
}

// TestForkWhereSystemdIsSilent checks an agent that cannot reach systemd. The agent must fork a
// command that it would normally run as a service, and log a warning.
func TestForkWhereSystemdIsSilent(t *testing.T) {
	b := newBench(t)
	b.opts.Systemd, b.opts.ServiceArgv = noBus(t, errors.New("nobody is there")), []string{"/bin/false"}
	b.file("fake.yaml", b.fakeFile("", "health: {interval: 1h}\n"))
	b.start()
	b.await("fake", supervisor.Ready)
	if n := len(b.starts()); n != 1 {
		t.Errorf("it was started %d times", n)
	}
	if log := b.log.String(); !strings.Contains(log, "[WARN]") || !strings.Contains(log, "nobody is there") {
		t.Errorf("the log is %s", log)
	}
}

// TestUnitWithoutSystemd checks a plugin that is a systemd unit. On a host without systemd, the
// agent must refuse the plugin until an operator fixes the problem. If systemd is only temporarily
// unreachable, the plugin must wait for systemd.
func TestUnitWithoutSystemd(t *testing.T) {
	for _, tt := range []struct {
		bus   *systemd.Bus
		state supervisor.State
		words string
	}{
		{nil, supervisor.Failed, "not booted with systemd; use exec, container or socket"},
		{noBus(t, systemd.ErrNone), supervisor.Failed, "not booted with systemd; use exec, container or socket"},
		{noBus(t, errors.New("nobody is there")), supervisor.BackingOff, "nobody is there"},
	} {
		b := newBench(t)
		b.opts.Systemd = tt.bus
		b.file("u.yaml", "id: u\nunit: csi.service\n")
		b.start()
		if st := b.await("u", tt.state); !strings.Contains(st.Reason, tt.words) || st.LogFile != "" {
			t.Errorf("%+v", st)
		}
	}
}

// journalctl replaces the program journalctl with a script.
func journalctl(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "journalctl"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// TestUnitLog checks that the log of a unit contains the last lines of the unit's journal, and that
// the log can be followed.
func TestUnitLog(t *testing.T) {
	journalctl(t, `echo "$*"; printf 'a\033[31mb\n'; case "$*" in *--follow*) echo more; exec sleep 1000;; esac`)
	b := newBench(t)
	b.opts.Systemd = noBus(t, errors.New("nobody is there"))
	b.file("u.yaml", "id: u\nunit: csi.service\n")
	b.start()
	lines, err := b.sup.LogTail("u", 7)
	if err != nil || len(lines) != 2 || lines[0] != "--no-pager --quiet --output=cat --lines=7 --unit=csi.service" || lines[1] != "a[31mb" {
		t.Errorf("%q, %v", lines, err)
	}
	if st := b.status("u"); len(st.LastLog) != 2 {
		t.Errorf("the status shows %q", st.LastLog)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got strings.Builder
	err = b.sup.FollowLog(ctx, "u", 1, true, func(data []byte) error {
		got.Write(data)
		if strings.HasSuffix(got.String(), "more\n") {
			cancel()
		}
		return nil
	})
	if err != nil || !strings.HasSuffix(got.String(), "--lines=1 --follow --unit=csi.service\na[31mb\nmore\n") {
		t.Errorf("%q, %v", got.String(), err)
	}
}

// TestHungJournal checks a journalctl that hangs. It must delay a status request only briefly, and
// several requests must wait at the same time.
func TestHungJournal(t *testing.T) {
	journalctl(t, `exec sleep 1000`)
	b := newBench(t)
	b.opts.Systemd = noBus(t, errors.New("nobody is there"))
	b.file("u.yaml", "id: u\nunit: csi.service\n")
	b.start()
	begun := time.Now()
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() { b.status("u") })
	}
	all.Wait()
	if took := time.Since(begun); took > 15*time.Second {
		t.Errorf("ten statuses took %v", took)
	}
}
