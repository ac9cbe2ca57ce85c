package main_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/volmgr/csitest"
)

// recorded is a host with the recording plugin. This plugin records every call, checks the rules of
// CSI, and fails on command.
type recorded struct {
	*host
	cfg  csitest.Config
	slow bool // the plugin starts slowly
}

// newRecorded starts a host whose plugin "rec" needs ControllerPublish and staging. deadline is the
// timeout of each call.
func newRecorded(t *testing.T, deadline string, tune func(*csitest.Config)) recorded {
	t.Helper()
	h := prepared(t, deadline, tune)
	h.start("rec")
	return h
}

// prepared returns the same host as newRecorded, but does not start the agent.
func prepared(t *testing.T, deadline string, tune func(*csitest.Config)) recorded {
	t.Helper()
	h := recorded{host: newHost(t)}
	h.cfg = csitest.Config{
		Base: filepath.Join(h.dir, "p"), NodeID: "test-host",
		Attach: true, Stage: true, Stats: true, CreateDelete: true, MultiWriter: true, AnyVolume: true,
	}
	if tune != nil {
		tune(&h.cfg)
	}
	h.writePlugin(deadline)
	t.Cleanup(h.kept)
	return h
}

// writePlugin writes the file of the plugin "rec".
func (h recorded) writePlugin(deadline string) {
	h.t.Helper()
	self, err := os.Executable()
	h.must(err)
	if h.slow {
		// Many real plugins also need some time before they serve calls.
		script := filepath.Join(h.dir, "slow")
		h.must(os.WriteFile(script, []byte("#!/bin/sh\nsleep 0.2\nexec "+self+"\n"), 0o755))
		self = script
	}
	file, err := h.cfg.PluginFile("rec", self)
	h.must(err)
	text := strings.TrimSuffix(strings.TrimSpace(string(file)), "}") +
		fmt.Sprintf(`, "timeouts": {"node": %q, "controller": %q}}`, deadline, deadline)
	h.must(os.WriteFile(filepath.Join(h.dir, "plugins.d", "rec.yaml"), []byte(text), 0o644))
}

// kept asserts that the plugin's journal shows no violation of CSI.
func (h recorded) kept() {
	j, err := csitest.LoadJournal(h.cfg.JournalPath())
	if err != nil {
		h.t.Error(err)
	}
	for _, v := range j.Violations {
		h.t.Errorf("a rule of CSI was broken: %s", v)
	}
}

// calls returns the state-changing calls that the plugin received since a mark.
func (h recorded) calls(since int64) csitest.Calls {
	h.t.Helper()
	all, err := csitest.ReadJournal(h.cfg.JournalPath())
	h.must(err)
	return all.Since(since).Mutating()
}

func (h recorded) mark() int64 {
	h.t.Helper()
	all, err := csitest.ReadJournal(h.cfg.JournalPath())
	h.must(err)
	return all.Mark()
}

// register registers a volume that already exists in the plugin's storage.
func (h recorded) register(id, mode string) {
	h.t.Helper()
	file := filepath.Join(h.dir, id+".yaml")
	h.must(os.WriteFile(file, fmt.Appendf(nil,
		"id: %s\nplugin_id: rec\nexternal_id: ext/%s\ncapabilities:\n- {access_mode: %s, attachment_mode: file-system}\n", id, id, mode), 0o644))
	h.volctl("volume", "register", file)
}

func (h recorded) fault(f ...csitest.Fault) {
	h.t.Helper()
	_, err := h.cfg.Faults().Add(f...)
	h.must(err)
}

// expect asserts that the plugin received exactly the given calls since a mark, in this order.
func (h recorded) expect(since int64, want ...string) {
	h.t.Helper()
	if got := h.calls(since).Methods(); !slices.Equal(got, want) {
		h.t.Fatalf("calls:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// writer starts a process that appends to a file in dir until the test ends. The process keeps the
// file open all the time. writer returns the name of the file.
func (h recorded) writer(dir string) string {
	h.t.Helper()
	file := filepath.Join(dir, "log")
	cmd := exec.Command("sh", "-c", `exec >> "$0"; while :; do echo line; sleep 0.01; done`, file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	h.must(cmd.Start())
	h.t.Cleanup(func() {
		h.must(cmd.Process.Kill())
		if err := cmd.Wait(); err == nil {
			h.t.Error("the writer ended by itself")
		}
	})
	h.await("the first line", func() bool { return size(file) > 0 })
	return file
}

func size(file string) int64 {
	info, err := os.Stat(file)
	if err != nil {
		return 0
	}
	return info.Size()
}

// TestRestart kills the agent several times while there are three claims and processes write to the
// volumes. The next agent finds the plugin, the claims and the mounts, and sends no call.
func TestRestart(t *testing.T) {
	h := newRecorded(t, "10s", nil)
	h.register("shared", "single-node-multi-writer")
	h.register("own", "single-node-writer")
	paths := []string{
		h.volctl("volume", "claim", "shared", "--alloc", "a"),
		h.volctl("volume", "claim", "shared", "--alloc", "b", "--read-only"),
		h.volctl("volume", "claim", "own", "--alloc", "a"),
	}
	one, two := h.writer(paths[0]), h.writer(paths[2])
	claims, mounts, pid, mark := h.volctl("claim", "list", "-o", "json"), h.mounts(), h.pluginPID("rec"), h.mark()
	for round := range 5 {
		if round == 4 {
			h.must(h.signal(syscall.SIGTERM)) // a normal exit leaves the same state as a kill
		} else {
			h.kill()
		}
		was := size(one)
		h.await("the writer to go on without an agent", func() bool { return size(one) > was })
		h.start("rec")
		h.await("all volumes to be looked at", func() bool { return strings.Count(h.volctl("volume", "list"), " mounted ") == 2 })
		if got := h.volctl("claim", "list", "-o", "json"); got != claims {
			t.Fatalf("the claims changed:\n%s\nwere:\n%s", got, claims)
		}
		if got := h.mounts(); got != mounts {
			t.Fatalf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
		}
		if got := h.pluginPID("rec"); got != pid {
			t.Fatalf("the plugin is process %d, was %d", got, pid)
		}
		h.expect(mark)
		was = size(two)
		h.await("the writer to go on", func() bool { return size(two) > was })
	}
	// The agent still knows all claims of a staged volume.
	h.volctl("volume", "detach", "shared", "b")
	h.expect(mark, csitest.NodeUnpublish)
}

// TestOrder checks that the agent makes every call in the life of two claims exactly once and in
// the right order.
func TestOrder(t *testing.T) {
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-multi-writer")
	mark := h.mark()
	h.volctl("volume", "claim", "data", "--alloc", "a")
	h.volctl("volume", "claim", "data", "--alloc", "b")
	h.volctl("volume", "claim", "data", "--alloc", "b")
	h.expect(mark, csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish, csitest.NodePublish)
	mark = h.mark()
	h.volctl("volume", "detach", "data", "a")
	h.expect(mark, csitest.NodeUnpublish)
	h.volctl("volume", "detach", "data", "b")
	h.expect(mark, csitest.NodeUnpublish, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish)
	h.allGone()
	if out := h.volctl("volume", "list"); !strings.Contains(out, "free") {
		t.Errorf("the volume is not free:\n%s", out)
	}
}

// TestFaults claims a volume while the plugin misbehaves once. The claim must still succeed, and
// the agent must make exactly the listed calls.
func TestFaults(t *testing.T) {
	t.Parallel()
	const (
		cp, st, pub = csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish
		unpub, unst = csitest.NodeUnpublish, csitest.NodeUnstage
		uncp        = csitest.ControllerUnpublish
	)
	for _, tt := range []struct {
		name  string
		fault csitest.Fault
		calls []string
	}{
		{"attach fails", csitest.Fault{Method: cp, Code: codes.Internal}, []string{cp, uncp, cp, st, pub}},
		{"attach fails with effect", csitest.Fault{Method: cp, Code: codes.Internal, Effect: csitest.EffectDone}, []string{cp, uncp, cp, st, pub}},
		{"stage fails", csitest.Fault{Method: st, Code: codes.Internal}, []string{cp, st, unst, st, pub}},
		{"stage fails with effect", csitest.Fault{Method: st, Code: codes.Internal, Effect: csitest.EffectDone}, []string{cp, st, unst, st, pub}},
		{"stage is slower than its deadline", csitest.Fault{Method: st, Delay: 3 * time.Second}, []string{cp, st, unst, st, pub}},
		{"stage says OK and did nothing", csitest.Fault{Method: st, Effect: csitest.EffectNone}, []string{cp, st, pub, unpub, unst, st, pub}},
		{"publish fails", csitest.Fault{Method: pub, Code: codes.Unknown}, []string{cp, st, pub, unpub, pub}},
		{"publish fails with effect", csitest.Fault{Method: pub, Code: codes.Unknown, Effect: csitest.EffectDone}, []string{cp, st, pub, unpub, pub}},
		{"publish says OK and did nothing", csitest.Fault{Method: pub, Effect: csitest.EffectNone}, []string{cp, st, pub, unpub, pub}},
		{"publish says OK before it mounts", csitest.Fault{Method: pub, Effect: csitest.EffectLater, Delay: 300 * time.Millisecond}, []string{cp, st, pub}},
		{"the plugin dies in stage", csitest.Fault{Method: st, Crash: csitest.AfterEffect}, []string{cp, st, unst, st, pub}},
		{"the plugin dies in publish", csitest.Fault{Method: pub, Crash: csitest.BeforeEffect}, []string{cp, st, pub, unpub, pub}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newRecorded(t, "2s", nil)
			h.register("data", "single-node-writer")
			mark := h.mark()
			h.fault(tt.fault)
			path := h.volctl("volume", "claim", "data", "--alloc", "a", "--timeout", "60s")
			h.expect(mark, tt.calls...)
			h.must(os.WriteFile(filepath.Join(path, "file"), []byte("kept"), 0o644))
			if _, err := os.Stat(filepath.Join(h.cfg.Base, "volumes")); err != nil {
				t.Fatal(err)
			}
			h.volctl("volume", "detach", "data", "a")
			h.allGone()
			path = h.volctl("volume", "claim", "data", "--alloc", "b")
			if raw, err := os.ReadFile(filepath.Join(path, "file")); string(raw) != "kept" {
				t.Errorf("the data is %q, %v", raw, err)
			}
			h.volctl("volume", "detach", "data")
		})
	}
}

// TestFinalError checks a claim that can never succeed. The claim fails with the plugin's message.
// The agent withdraws the claim and undoes its calls.
func TestFinalError(t *testing.T) {
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	mark := h.mark()
	h.fault(csitest.Fault{Method: csitest.NodeStage, Code: codes.InvalidArgument, Message: "no such flavour"})
	r := h.try("volume", "claim", "data", "--alloc", "a")
	if r.code != 1 || !strings.Contains(r.err, "no such flavour") || !strings.Contains(r.err, "withdrawn") || r.out != "" {
		t.Fatalf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	h.volctl("wait", "--volume", "data", "--for", "free", "--timeout", "30s")
	h.expect(mark, csitest.ControllerPublish, csitest.NodeStage, csitest.NodeUnstage, csitest.ControllerUnpublish)
	h.allGone()
}

// TestReadOnly checks that a read-only claim is not writable even if the plugin ignores the
// read-only flag.
func TestReadOnly(t *testing.T) {
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	h.fault(csitest.Fault{Method: csitest.NodePublish, IgnoreReadOnly: true})
	path := h.volctl("volume", "claim", "data", "--alloc", "a", "--read-only")
	if err := os.WriteFile(filepath.Join(path, "file"), nil, 0o644); err == nil {
		t.Fatal("a read-only claim could be written to")
	}
}

// TestStillMounted checks an unpublish that returns OK but leaves the mount. The agent must not
// treat this as a success. The error names the process that uses the mount, and the claim remains
// until that process ends.
func TestStillMounted(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	path := h.volctl("volume", "claim", "data", "--alloc", "a")
	holder := newSleeper(t, path)
	r := h.try("volume", "detach", "data", "a", "--timeout", "3s")
	if r.code != 5 || !strings.Contains(r.err, "sleep") {
		t.Errorf("exit %d, stderr %q", r.code, r.err)
	}
	remedy := fmt.Sprintf("kill %d", holder.pid())
	h.await("the status to say what helps", func() bool { return strings.Contains(h.volctl("volume", "status", "data"), remedy) })
	if out := h.volctl("volume", "deregister", "data", "--ignore-not-found", "-force", "-y"); !strings.Contains(out, "may still be mounted") {
		t.Errorf("force said %q", out)
	}
	holder.kill()
	h.register("data", "single-node-writer")
	h.volctl("wait", "--volume", "data", "--for", "free", "--timeout", "30s")
	h.allGone()
}

// TestLateMount checks a stage that exceeds its deadline and mounts the volume after the agent has
// sent the unstage. The agent must send the unstage again.
func TestLateMount(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "6s", nil)
	h.register("data", "single-node-writer")
	mark := h.mark()
	h.fault(csitest.Fault{Method: csitest.NodeStage, Effect: csitest.EffectLater, Delay: 4 * time.Second, Code: codes.Internal})
	r := h.try("volume", "claim", "data", "--alloc", "a", "--timeout", "300ms")
	if r.code != 5 {
		t.Fatalf("exit %d, stderr %q", r.code, r.err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := csitest.AwaitCalls(ctx, h.cfg.JournalPath(), func(cs csitest.Calls) bool {
		return cs.Since(mark).Count(csitest.NodeUnstage) == 1
	}); err != nil {
		t.Fatal(err)
	}
	// The first unstage removed the directory. The test creates it again, as many plugins do before
	// a late mount.
	h.await("the staging path to go", func() bool { return os.Mkdir(filepath.Join(h.dir, "d/csi/rec/staging/data"), 0o711) == nil })
	if _, err := csitest.AwaitCalls(ctx, h.cfg.JournalPath(), func(cs csitest.Calls) bool {
		return cs.Since(mark).Count(csitest.NodeUnstage) == 2 && cs.Since(mark).Count(csitest.ControllerUnpublish) == 1
	}); err != nil {
		t.Fatal(err)
	}
	h.volctl("wait", "--volume", "data", "--for", "free", "--timeout", "30s")
	h.allGone()
}

// TestKilledInACall kills the agent before or after the effect of each call of a claim and of its
// detach. The next agent must complete the claim or the detach.
func TestKilledInACall(t *testing.T) {
	t.Parallel()
	for _, method := range []string{
		csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish,
		csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish,
	} {
		for _, moment := range []csitest.Moment{csitest.BeforeEffect, csitest.AfterEffect} {
			t.Run(method+" "+string(moment), func(t *testing.T) {
				h := newRecorded(t, "2s", nil)
				h.register("data", "single-node-writer")
				h.fault(csitest.Fault{Method: method, KillCaller: moment})
				release := strings.Contains(method, "Un")
				if !release {
					h.try("volume", "claim", "data", "--alloc", "a", "--no-wait") // the agent may die before it answers
				} else {
					h.volctl("volume", "claim", "data", "--alloc", "a")
					h.try("volume", "detach", "data", "a", "--no-wait")
				}
				if err := h.cmd.Wait(); err == nil {
					t.Fatal("the agent was not killed")
				}
				h.start("rec")
				want := map[bool]string{false: "mounted", true: "free"}[release]
				h.volctl("wait", "--volume", "data", "--for", want, "--timeout", "30s")
				if !release {
					h.volctl("volume", "detach", "data", "a")
				}
				h.allGone()
			})
		}
	}
}
