package supervisor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr/plugin"
)

// patience limits how long the tests wait for a condition.
const patience = 60 * time.Second

// bench is a test host. It has a plugin directory, a store that is kept when a supervisor ends, and
// at most one supervisor at a time.
type bench struct {
	t    *testing.T
	dir  string
	fake behaviour // controls the behaviour of the plugin "fake"
	opts supervisor.Options
	*memStore
	inUse atomic.Bool
	log   *syncBuffer

	sup  *supervisor.Supervisor
	stop func()
}

func newBench(t *testing.T) *bench {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "sv") //nolint:usetesting // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, dir: dir, fake: behaviour(dir + "/fake"), memStore: &memStore{recs: map[string][]byte{}}, log: &syncBuffer{}, stop: func() {}}
	for _, d := range []string{"fake", "etc"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	b.opts = options(dir)
	b.opts.Store, b.opts.InUse = b.memStore, func(string) []string {
		if b.inUse.Load() {
			return []string{"data"}
		}
		return nil
	}
	b.opts.Logger = hclog.New(&hclog.LoggerOptions{Output: b.log, Level: hclog.Trace})
	t.Cleanup(func() {
		b.stop()
		b.killAll()
		if t.Failed() {
			t.Logf("log:\n%s", b.log)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return b
}

func options(dir string) supervisor.Options {
	return supervisor.Options{
		PluginDir: dir + "/etc", DataDir: dir + "/d", RuntimeDir: dir + "/r", NodeID: "node-1",
		Backoff:   supervisor.Backoff{Base: 10 * time.Millisecond, Max: 50 * time.Millisecond},
		StopGrace: 2 * time.Second,
	}
}

// killAll kills all plugin processes that this test started, each by its pid.
func (b *bench) killAll() {
	files, _ := filepath.Glob(b.dir + "/*/starts")
	for _, f := range files {
		for _, pid := range b.pids(filepath.Dir(f)) {
			kill(b.t, pid)
		}
	}
	daemons, _ := filepath.Glob(b.dir + "/*/daemon")
	for _, f := range daemons {
		if pid, err := strconv.Atoi(behaviour(filepath.Dir(f)).text("daemon", "")); err == nil {
			kill(b.t, pid)
		}
	}
}

// kill kills a process of this test run and waits for its end.
func kill(t *testing.T, pid int) {
	t.Helper()
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil || !strings.Contains(string(env), envRun+"="+os.Getenv(envRun)) {
		reap(pid)
		return
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Errorf("kill %d: %v", pid, err)
	}
	await(t, fmt.Sprintf("the end of process %d", pid), func() bool { return reap(pid) && !alive(pid) })
}

// reap collects the exit status of a child that no other code waits for. It returns true if it
// collected the status, or if the process is not a child of this process.
func reap(pid int) bool {
	var ws syscall.WaitStatus
	got, err := syscall.Wait4(pid, &ws, syscall.WNOHANG, nil)
	return got == pid || err != nil
}

func alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(data), ") Z ")
}

// pids returns the pids of the fake plugins that were started with a directory.
func (b *bench) pids(dir string) []int {
	var pids []int
	for _, s := range strings.Fields(behaviour(dir).text("starts", "")) {
		pid, err := strconv.Atoi(s)
		if err != nil {
			b.t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

func (b *bench) starts() []int { return b.pids(string(b.fake)) }

// set switches on a behaviour of the fake plugin; unset switches it off.
func (b *bench) set(name, content string) {
	b.t.Helper()
	// The rename replaces the file at once, so the plugin never reads an incomplete file.
	tmp := filepath.Join(b.dir, "tmp")
	if err := errors.Join(os.WriteFile(tmp, []byte(content), 0o600), os.Rename(tmp, filepath.Join(string(b.fake), name))); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) unset(name string) {
	b.t.Helper()
	if err := os.Remove(filepath.Join(string(b.fake), name)); err != nil {
		b.t.Fatal(err)
	}
}

// file writes a plugin file.
func (b *bench) file(name, content string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, "etc", name), []byte(content), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// quick makes the agent probe a plugin often. The timeout is long, so that no probe fails on a busy
// host.
const quick = "health: {interval: 30ms, timeout: 5s, start_timeout: 20s}\n"

// hangsSoon makes the probes of a plugin that hangs time out soon.
const hangsSoon = "health: {interval: 30ms, timeout: 200ms, start_timeout: 20s}\n"

// fakeFile returns the text of a plugin file for the fake plugin. The argument env contains
// additional lines for the plugin's environment, and more contains additional lines for the file.
func (b *bench) fakeFile(env, more string) string {
	exe, err := os.Executable()
	if err != nil {
		b.t.Fatal(err)
	}
	return fmt.Sprintf("id: fake\nexec:\n  command: [%s]\n  env:\n    %s: %s\n    %s: %s\n%s%s", exe, envFake, b.fake, envRun, os.Getenv(envRun), env, more)
}

// start starts a supervisor, as an agent does when it starts.
func (b *bench) start() {
	b.t.Helper()
	b.sup = supervisor.New(b.opts)
	if err := b.sup.Load(); err != nil {
		b.t.Fatal(err)
	}
	b.run()
}

func (b *bench) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	sup := b.sup
	go func() { done <- sup.Run(ctx) }()
	b.stop = func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				b.t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			b.t.Error("Run does not end")
		}
		b.stop = func() {}
	}
}

// reload makes the supervisor read the plugin files again.
func (b *bench) reload() {
	b.t.Helper()
	if err := b.sup.Reload(); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) status(id string) supervisor.Status {
	b.t.Helper()
	st, err := b.sup.Status(id)
	if err != nil {
		b.t.Fatal(err)
	}
	return st
}

// await waits until a plugin is in a state, and returns the plugin's status.
func (b *bench) await(id string, want supervisor.State) supervisor.Status {
	b.t.Helper()
	return b.awaitThat(id, string(want), func(st supervisor.Status) bool { return st.State == want })
}

func (b *bench) awaitThat(id, what string, ok func(supervisor.Status) bool) supervisor.Status {
	b.t.Helper()
	timeout := time.After(patience)
	for {
		changed := b.sup.Changed(id)
		st, err := b.sup.Status(id)
		if err == nil && ok(st) {
			return st
		}
		select {
		case <-changed:
		// poll, because some values change without a change of the state
		case <-time.After(5 * time.Millisecond):
		case <-timeout:
			b.t.Fatalf("plugin %q is not %s but %+v, %v", id, what, st, err)
		}
	}
}

// await waits until a condition is true.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	timeout := time.After(patience)
	for !ok() {
		select {
		case <-time.After(2 * time.Millisecond):
		case <-timeout:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// serve serves a plugin on a socket from this process. The agent does not run this plugin.
func (b *bench) serve(socket string) (stop func()) {
	b.t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.serveAt(l)
}

// serveAt serves the fake plugin on a listener, until stop or the end of the test.
func (b *bench) serveAt(l net.Listener) (stop func()) {
	b.t.Helper()
	s := fakeServer(b.fake)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	stop = sync.OnceFunc(func() { s.Stop(); <-done })
	b.t.Cleanup(stop)
	return stop
}

// memStore is a Store that keeps its records as JSON, as a store on disk does.
type memStore struct {
	mu    sync.Mutex
	recs  map[string][]byte
	path  string // if set, the records are also in this file
	saves int
	// deny can return an error for a save, as if the agent had died before the save.
	deny func(plugin.Record) error
}

func (s *memStore) LoadPlugins() ([]plugin.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []plugin.Record
	for _, data := range s.recs {
		var r plugin.Record
		if err := json.Unmarshal(data, &r); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

func (s *memStore) SavePlugin(_ context.Context, rec plugin.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deny != nil {
		if err := s.deny(rec); err != nil {
			return err
		}
	}
	data, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	s.recs[rec.ID] = data
	s.saves++
	if s.path == "" {
		return nil
	}
	all, err := json.Marshal(s.recs)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(s.path+".tmp", all, 0o600), os.Rename(s.path+".tmp", s.path))
}

// load reads the records that another process has stored in the file.
func (s *memStore) load() error {
	data, err := os.ReadFile(s.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(data, &s.recs)
}

func (s *memStore) record(t *testing.T, id string) plugin.Record {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var r plugin.Record
	if err := json.Unmarshal(s.recs[id], &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func (s *memStore) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all strings.Builder
	for _, data := range s.recs {
		all.Write(data)
	}
	return all.String()
}

func (s *memStore) setDeny(deny func(plugin.Record) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deny = deny
}

// syncBuffer is a log that several goroutines may write and read at the same time.
type syncBuffer struct {
	mu  sync.Mutex
	buf strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
