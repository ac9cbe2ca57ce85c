package claims_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// TestRestart kills the agent several times while three claims exist and processes write to the
// volumes. The next agent finds the plugin, the claims and the mounts, and makes no CSI call.
func TestRestart(t *testing.T) {
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("shared", "single-node-multi-writer")
	h.Register("own", "single-node-writer")
	paths := []string{
		h.Volctl("volume", "claim", "shared", "--alloc", "a"),
		h.Volctl("volume", "claim", "shared", "--alloc", "b", "--read-only"),
		h.Volctl("volume", "claim", "own", "--alloc", "a"),
	}
	one, two := h.StartWriter(paths[0]), h.StartWriter(paths[2])
	claims, mounts, pid, mark := h.Volctl("claim", "list", "-o", "json"), h.Mounts(), h.PluginPID("rec"), h.Mark()
	for round := range 5 {
		if round == 4 {
			h.Must(h.Signal(syscall.SIGTERM)) // an exit must change nothing either
		} else {
			h.Kill()
		}
		was := harness.FileSize(one)
		h.Await("the writer to go on without an agent", func() bool { return harness.FileSize(one) > was })
		h.Start("rec")
		h.Await("all volumes to be looked at", func() bool { return strings.Count(h.Volctl("volume", "list"), " mounted ") == 2 })
		if got := h.Volctl("claim", "list", "-o", "json"); got != claims {
			t.Fatalf("the claims changed:\n%s\nwere:\n%s", got, claims)
		}
		if got := h.Mounts(); got != mounts {
			t.Fatalf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
		}
		if got := h.PluginPID("rec"); got != pid {
			t.Fatalf("the plugin is process %d, was %d", got, pid)
		}
		h.ExpectCalls(mark)
		was = harness.FileSize(two)
		h.Await("the writer to go on", func() bool { return harness.FileSize(two) > was })
	}
	// The agent still knows that a second claim uses the staged volume, so it does not unstage the
	// volume.
	h.Volctl("volume", "detach", "shared", "b")
	h.ExpectCalls(mark, csitest.NodeUnpublish)
}

// TestOrder makes and detaches two claims, and checks that the agent makes each call exactly once
// and in the right order.
func TestOrder(t *testing.T) {
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-multi-writer")
	mark := h.Mark()
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	h.Volctl("volume", "claim", "data", "--alloc", "b")
	h.Volctl("volume", "claim", "data", "--alloc", "b")
	h.ExpectCalls(mark, csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish, csitest.NodePublish)
	mark = h.Mark()
	h.Volctl("volume", "detach", "data", "a")
	h.ExpectCalls(mark, csitest.NodeUnpublish)
	h.Volctl("volume", "detach", "data", "b")
	h.ExpectCalls(mark, csitest.NodeUnpublish, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish)
	h.ExpectNoMounts()
	if out := h.Volctl("volume", "list"); !strings.Contains(out, "free") {
		t.Errorf("the volume is not free:\n%s", out)
	}
}

// TestFaults claims a volume while one call of the plugin misbehaves. The claim must still succeed,
// and the agent must make exactly the listed calls.
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
			h := harness.StartRecorded(t, "2s", nil)
			h.Register("data", "single-node-writer")
			mark := h.Mark()
			h.AddFaults(tt.fault)
			path := h.Volctl("volume", "claim", "data", "--alloc", "a", "--timeout", "60s")
			h.ExpectCalls(mark, tt.calls...)
			h.Must(os.WriteFile(filepath.Join(path, "file"), []byte("kept"), 0o644))
			if _, err := os.Stat(filepath.Join(h.Config.Base, "volumes")); err != nil {
				t.Fatal(err)
			}
			h.Volctl("volume", "detach", "data", "a")
			h.ExpectNoMounts()
			path = h.Volctl("volume", "claim", "data", "--alloc", "b")
			if raw, err := os.ReadFile(filepath.Join(path, "file")); string(raw) != "kept" {
				t.Errorf("the data is %q, %v", raw, err)
			}
			h.Volctl("volume", "detach", "data")
		})
	}
}

// TestFinalError checks a claim that can never succeed. The claim command fails with the plugin's
// message. The agent withdraws the claim and undoes the calls that it had made for the claim.
func TestFinalError(t *testing.T) {
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	mark := h.Mark()
	h.AddFaults(csitest.Fault{Method: csitest.NodeStage, Code: codes.InvalidArgument, Message: "no such flavour"})
	r := h.Try("volume", "claim", "data", "--alloc", "a")
	if r.Code != 1 || !strings.Contains(r.Err, "no such flavour") || !strings.Contains(r.Err, "withdrawn") || r.Out != "" {
		t.Fatalf("exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	h.Volctl("wait", "--volume", "data", "--for", "free", "--timeout", "30s")
	h.ExpectCalls(mark, csitest.ControllerPublish, csitest.NodeStage, csitest.NodeUnstage, csitest.ControllerUnpublish)
	h.ExpectNoMounts()
}

// TestReadOnly checks that a process cannot write through a read-only claim, even if the plugin
// ignores the read-only flag.
func TestReadOnly(t *testing.T) {
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	h.AddFaults(csitest.Fault{Method: csitest.NodePublish, IgnoreReadOnly: true})
	path := h.Volctl("volume", "claim", "data", "--alloc", "a", "--read-only")
	if err := os.WriteFile(filepath.Join(path, "file"), nil, 0o644); err == nil {
		t.Fatal("a read-only claim could be written to")
	}
}

// TestStillMounted checks a NodeUnpublishVolume that returns OK but leaves the volume mounted. The
// agent must not treat the call as a success. The error names the process that uses the mount, and
// the claim remains until the process ends.
func TestStillMounted(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	path := h.Volctl("volume", "claim", "data", "--alloc", "a")
	holder := harness.StartSleeper(t, path)
	r := h.Try("volume", "detach", "data", "a", "--timeout", "3s")
	if r.Code != 5 || !strings.Contains(r.Err, "sleep") {
		t.Errorf("exit %d, stderr %q", r.Code, r.Err)
	}
	remedy := fmt.Sprintf("kill %d", holder.PID())
	h.Await("the status to say what helps", func() bool { return strings.Contains(h.Volctl("volume", "status", "data"), remedy) })
	if out := h.Volctl("volume", "deregister", "data", "--ignore-not-found", "-force", "-y"); !strings.Contains(out, "may still be mounted") {
		t.Errorf("force said %q", out)
	}
	holder.Kill()
	h.Register("data", "single-node-writer")
	h.Volctl("wait", "--volume", "data", "--for", "free", "--timeout", "30s")
	h.ExpectNoMounts()
}

// TestLateMount checks a NodeStageVolume that exceeds its deadline and mounts the volume only after
// the agent has called NodeUnstageVolume. The agent must call NodeUnstageVolume again.
func TestLateMount(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "6s", nil)
	h.Register("data", "single-node-writer")
	mark := h.Mark()
	h.AddFaults(csitest.Fault{Method: csitest.NodeStage, Effect: csitest.EffectLater, Delay: 4 * time.Second, Code: codes.Internal})
	r := h.Try("volume", "claim", "data", "--alloc", "a", "--timeout", "300ms")
	if r.Code != 5 {
		t.Fatalf("exit %d, stderr %q", r.Code, r.Err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := csitest.AwaitCalls(ctx, h.Config.JournalPath(), func(cs csitest.Calls) bool {
		return cs.Since(mark).Count(csitest.NodeUnstage) == 1
	}); err != nil {
		t.Fatal(err)
	}
	// The first NodeUnstageVolume removed the staging directory. The test creates the directory
	// again, as many plugins do before a late mount.
	h.Await("the staging path to go", func() bool { return os.Mkdir(filepath.Join(h.Dir, "d/csi/rec/staging/data"), 0o711) == nil })
	if _, err := csitest.AwaitCalls(ctx, h.Config.JournalPath(), func(cs csitest.Calls) bool {
		return cs.Since(mark).Count(csitest.NodeUnstage) == 2 && cs.Since(mark).Count(csitest.ControllerUnpublish) == 1
	}); err != nil {
		t.Fatal(err)
	}
	h.Volctl("wait", "--volume", "data", "--for", "free", "--timeout", "30s")
	h.ExpectNoMounts()
}

// TestKilledInACall kills the agent before or after the effect of each CSI call of a claim and of
// its detach. The next agent must complete the claim or the detach.
func TestKilledInACall(t *testing.T) {
	t.Parallel()
	for _, method := range []string{
		csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish,
		csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish,
	} {
		for _, moment := range []csitest.Moment{csitest.BeforeEffect, csitest.AfterEffect} {
			t.Run(method+" "+string(moment), func(t *testing.T) {
				h := harness.StartRecorded(t, "2s", nil)
				h.Register("data", "single-node-writer")
				h.AddFaults(csitest.Fault{Method: method, KillCaller: moment})
				release := strings.Contains(method, "Un")
				if !release {
					// The command may fail because the agent is killed.
					h.Try("volume", "claim", "data", "--alloc", "a", "--no-wait")
				} else {
					h.Volctl("volume", "claim", "data", "--alloc", "a")
					h.Try("volume", "detach", "data", "a", "--no-wait")
				}
				if err := h.Cmd.Wait(); err == nil {
					t.Fatal("the agent was not killed")
				}
				h.Start("rec")
				want := map[bool]string{false: "mounted", true: "free"}[release]
				h.Volctl("wait", "--volume", "data", "--for", want, "--timeout", "30s")
				if !release {
					h.Volctl("volume", "detach", "data", "a")
				}
				h.ExpectNoMounts()
			})
		}
	}
}
