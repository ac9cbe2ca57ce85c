package provision_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// newGrowing returns a host with volume "data" and a recording plugin that can expand it.
func newGrowing(t *testing.T, tune func(*csitest.Config)) harness.Recorded {
	t.Helper()
	h := harness.StartRecorded(t, "20s", harness.WithExpansion(tune))
	h.Register("data", "single-node-multi-writer")
	return h
}

// totalBytes returns the size that the plugin reports for volume "data", in bytes.
func totalBytes(h harness.Recorded) string {
	h.T.Helper()
	return h.Volctl("volume", "stats", "data", "-o", "go-template={{.bytes_total}}")
}

// TestExpandMounted checks that a volume grows while a claim uses it, without a remount.
func TestExpandMounted(t *testing.T) {
	t.Parallel()
	h := newGrowing(t, nil)
	path := h.Volctl("volume", "claim", "data", "--alloc", "a")
	h.StartWriter(path)
	was, mark := h.Mounts(), h.Mark()
	if got := h.Volctl("volume", "expand", "data", "8MiB"); got != `expanded volume "data" to 8MiB (8388608 bytes)` {
		t.Errorf("it said %q", got)
	}
	h.ExpectCalls(mark, csitest.ControllerExpand, csitest.NodeExpand)
	if h.Mounts() != was {
		t.Errorf("mounts:\n%s\nwere:\n%s", h.Mounts(), was)
	}
	for _, c := range h.Calls(mark) {
		if c.Least != 8<<20 || c.Method == csitest.NodeExpand && (c.TargetPath != c.StagingPath || c.StagingPath == "") {
			t.Errorf("it was asked for %+v", c)
		}
	}
	if got := totalBytes(h); got != "8388608" {
		t.Errorf("it has %s", got)
	}
	mark = h.Mark()
	if got := h.Volctl("volume", "expand", "data", "8MiB"); got != `volume "data" is unchanged: it has 8MiB (8388608 bytes)` {
		t.Errorf("once more: %q", got)
	}
	h.ExpectCalls(mark)
	h.ExpectRefusal(4, `volume "data" has 8MiB and cannot shrink to 4MiB`, "volume", "expand", "data", "4MiB")
	h.ExpectRefusal(3, `no volume "dat"`, "volume", "expand", "dat", "16MiB")
	h.ExpectRefusal(2, "must be at least 1048576", "volume", "expand", "data", "16")
	if got := h.Volctl("events", "--volume", "data"); !strings.Contains(got, "expand-begun") || !strings.Contains(got, "node-expanded") {
		t.Errorf("the events do not tell of it:\n%s", got)
	}
}

// TestExpandUnmounted checks the expansion of a volume that is not mounted. The expansion is
// complete before the next claim gets its path, even if the agent restarts between the two
// requests.
func TestExpandUnmounted(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		tune func(*csitest.Config)
		want []string
	}{
		"staged":     {nil, []string{csitest.ControllerPublish, csitest.NodeStage, csitest.NodeExpand, csitest.NodePublish}},
		"not staged": {harness.PublishOnly, []string{csitest.NodePublish, csitest.NodeExpand}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newGrowing(t, tt.tune)
			mark := h.Mark()
			if got := h.Volctl("volume", "expand", "data", "8MiB"); !strings.Contains(got, "expanded when it is mounted") {
				t.Errorf("it said %q", got)
			}
			h.ExpectCalls(mark, csitest.ControllerExpand)
			if got := h.Volctl("volume", "status", "data"); !strings.Contains(got, "its storage has 8MiB; its contents are expanded when it is mounted") {
				t.Errorf("status:\n%s", got)
			}
			h.Kill()
			h.Start("rec")
			mark = h.Mark()
			h.Volctl("volume", "claim", "data", "--alloc", "a")
			h.ExpectCalls(mark, tt.want...)
			if got := totalBytes(h); got != "8388608" {
				t.Errorf("it has %s", got)
			}
			mark = h.Mark()
			h.Volctl("volume", "detach", "data", "a")
			h.Volctl("volume", "claim", "data", "--alloc", "a")
			if calls := h.Calls(mark).Methods(); slices.Contains(calls, csitest.NodeExpand) {
				t.Errorf("it was expanded once more: %q", calls)
			}
		})
	}
}

// TestExpandOffline checks a plugin that expands only unused volumes. The agent must make the call
// when no claim uses the volume any more. A new claim must wait until the expansion is complete.
func TestExpandOffline(t *testing.T) {
	t.Parallel()
	h := newGrowing(t, func(c *csitest.Config) { c.Offline = true })
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	mark := h.Mark()
	h.ExpectRefusal(4, `expands volumes only while they are not in use, and volume "data" is claimed by "a" (mounted)`, "volume", "expand", "data", "8MiB")
	if r := h.Try("volume", "expand", "data", "8MiB"); !strings.Contains(r.Err, "hint: volctl volume detach data --all") {
		t.Errorf("no command frees it: %s", r.Err)
	}
	h.ExpectCalls(mark)
	h.Volctl("volume", "detach", "data", "a")
	h.AddFaults(csitest.Fault{Method: csitest.ControllerExpand, Hang: true})
	h.Volctl("volume", "expand", "data", "8MiB", "--no-wait")
	h.Await("the call", func() bool { return slices.Contains(h.Calls(mark).Methods(), csitest.ControllerExpand) })
	mark = h.Mark()
	h.Volctl("volume", "claim", "data", "--alloc", "b", "--no-wait")
	if got := h.Volctl("volume", "status", "data", "-o", "go-template={{.state}} {{.expansion.want}}"); got != "mounting 8388608" {
		t.Errorf("status: %s", got)
	}
	h.ExpectCalls(mark)
	h.Must(h.Config.Faults().Clear())
	h.Volctl("wait", "--volume", "data", "--for", "mounted")
	h.ExpectCalls(mark, csitest.ControllerPublish, csitest.NodeStage, csitest.NodeExpand, csitest.NodePublish)
}

// TestExpandRefused checks an expansion that the plugin permanently refuses. The command must show
// the error, and the agent must not retry the expansion.
func TestExpandRefused(t *testing.T) {
	t.Parallel()
	h := newGrowing(t, func(c *csitest.Config) { c.Storage = 16 << 20 })
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	h.ExpectRefusal(2, `plugin "rec" does not expand volume "data" to 32MiB`, "volume", "expand", "data", "32MiB")
	mark := h.Mark()
	if got := h.Volctl("volume", "status", "data"); !strings.Contains(got, "mounted, writable") || !strings.Contains(got, "it could not be expanded to 32MiB: ControllerExpandVolume: out of range") {
		t.Errorf("status:\n%s", got)
	}
	h.AddFaults(csitest.Fault{Method: csitest.NodeExpand, Code: codes.FailedPrecondition, Message: "not while it is mounted"})
	h.ExpectRefusal(4, `the storage of volume "data" has 8MiB, but the node did not complete the expansion: NodeExpandVolume: not possible now: not while it is mounted`, "volume", "expand", "data", "8MiB")
	if got := h.Volctl("volume", "status", "data"); !strings.Contains(got, "degraded: its storage has 8MiB") || !strings.Contains(got, "volctl volume expand data 8MiB") {
		t.Errorf("status:\n%s", got)
	}
	h.Volctl("volume", "claim", "data", "--alloc", "b") // a claim must not retry the expansion
	h.ExpectCalls(mark, csitest.ControllerExpand, csitest.NodeExpand, csitest.NodePublish)
	h.Volctl("volume", "expand", "data", "8MiB")
	if got := h.Volctl("volume", "status", "data", "-o", "go-template={{.state}}"); got != "mounted" {
		t.Errorf("then it is %s", got)
	}

	// The agent must still mount a volume whose expansion failed.
	h.Volctl("volume", "detach", "data", "--all")
	h.Volctl("volume", "expand", "data", "12MiB")
	h.AddFaults(csitest.Fault{Method: csitest.NodeExpand, Code: codes.FailedPrecondition, Message: "no"})
	h.Volctl("volume", "claim", "data", "--alloc", "c")
	if got := h.Volctl("volume", "status", "data"); !strings.Contains(got, "degraded: its storage has 12MiB") {
		t.Errorf("status:\n%s", got)
	}
}

// TestExpandTimesOut checks that a command reports its timeout and that the agent nevertheless
// continues the expansion.
func TestExpandTimesOut(t *testing.T) {
	t.Parallel()
	h := newGrowing(t, nil)
	h.AddFaults(csitest.Fault{Method: csitest.ControllerExpand, Hang: true, Effect: csitest.EffectDone})
	h.ExpectRefusal(5, "the agent continues", "volume", "expand", "data", "8MiB", "--timeout", "300ms")
	h.ExpectRefusal(4, "is being expanded to 8MiB already", "volume", "expand", "data", "6MiB")
	h.Must(h.Config.Faults().Clear())
	h.Volctl("volume", "expand", "data", "8MiB")
	h.AddFaults(csitest.Fault{Method: csitest.ControllerExpand, Code: codes.Internal, Message: "try later", Times: 2})
	h.Volctl("volume", "expand", "data", "16MiB")
	if n := len(slices.DeleteFunc(h.Calls(0).Methods(), func(m string) bool { return m != csitest.ControllerExpand })); n != 4 {
		t.Errorf("%d calls, want one, and three of which two failed:\n%s", n, h.Calls(0))
	}
}

// TestExpandWithdrawn checks that an operator can withdraw an expansion that never succeeds. A
// claim that was waiting for the expansion must then continue.
func TestExpandWithdrawn(t *testing.T) {
	t.Parallel()
	h := newGrowing(t, func(c *csitest.Config) { c.Offline = true })
	h.AddFaults(csitest.Fault{Method: csitest.ControllerExpand, Code: codes.Internal, Message: "not today", Times: -1})
	h.ExpectRefusal(5, "not today", "volume", "expand", "data", "8MiB", "--timeout", "2s")
	h.Volctl("volume", "claim", "data", "--alloc", "a", "--no-wait")
	h.Await("the way out to be shown", func() bool {
		got := h.Volctl("volume", "status", "data")
		return strings.Contains(got, "stuck: ") && strings.Contains(got, "volctl volume expand data --withdraw")
	})
	h.ExpectRefusal(2, "--withdraw takes no SIZE", "volume", "expand", "data", "8MiB", "--withdraw")
	h.ExpectRefusal(2, "needs SIZE", "volume", "expand", "data")
	h.ExpectRefusal(3, `no volume "nosuch"`, "volume", "expand", "nosuch", "--withdraw")
	for _, want := range []string{`withdrew the expansion of volume "data"`, "it is not being expanded"} {
		if got := h.Volctl("volume", "expand", "data", "--withdraw"); !strings.Contains(got, want) {
			t.Errorf("it said %s", got)
		}
	}
	h.Volctl("wait", "--volume", "data", "--for", "mounted")
	if got := h.Volctl("volume", "status", "data", "-o", "go-template={{.state}} {{.expansion}}"); got != "mounted <no value>" {
		t.Errorf("status: %s", got)
	}
}

// TestExpandCannot checks that the agent refuses an expansion that the plugin does not support, and
// that the agent stores no change.
func TestExpandCannot(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "20s", nil)
	h.Register("data", "single-node-writer")
	h.ExpectRefusal(4, `plugin "rec" cannot expand volumes`, "volume", "expand", "data", "8MiB")
	if got := h.Volctl("volume", "status", "data", "-o", "go-template={{.summary}}{{.expansion}}"); strings.Contains(got, "expand") {
		t.Errorf("status: %s", got)
	}
}

// TestExpandByFile checks that registering a volume file with a larger capacity_min expands the
// volume, like the expand command.
func TestExpandByFile(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "20s", harness.WithExpansion(nil))
	file := filepath.Join(h.Dir, "data.yaml")
	write := func(size string) {
		h.Must(os.WriteFile(file, []byte("id: data\nplugin_id: rec\nexternal_id: ext/data\ncapacity_min: "+size+"\n"), 0o644))
	}
	write("4MiB")
	h.Volctl("volume", "register", file)
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	mark := h.Mark()
	write("8MiB")
	if got := h.Volctl("volume", "validate", file); !strings.Contains(got, "capacity_min: 4MiB → 8MiB") {
		t.Errorf("validate: %s", got)
	}
	h.ExpectCalls(mark)
	if got := h.Volctl("volume", "register", file); !strings.Contains(got, "capacity_min: 4MiB → 8MiB") || totalBytes(h) != "8388608" {
		t.Errorf("register: %s", got)
	}
	h.ExpectCalls(mark, csitest.ControllerExpand, csitest.NodeExpand)
	h.Volctl("volume", "register", file)
	write("6MiB")
	h.Volctl("volume", "register", file) // the volume already has this size
	h.ExpectCalls(mark, csitest.ControllerExpand, csitest.NodeExpand)
}

// TestExpandGoesOn kills the agent during an expansion of a mounted or unmounted volume. The next
// agent must continue the expansion without another request.
func TestExpandGoesOn(t *testing.T) {
	t.Parallel()
	for _, method := range []string{csitest.ControllerExpand, csitest.NodeExpand} {
		for _, moment := range []csitest.Moment{csitest.BeforeEffect, csitest.AfterEffect} {
			t.Run(method+" "+string(moment), func(t *testing.T) {
				t.Parallel()
				h := newGrowing(t, nil)
				if method == csitest.NodeExpand {
					h.Volctl("volume", "claim", "data", "--alloc", "a")
				}
				want := "8388608, to go 8388608" // the file system grows only at the next mount
				if method == csitest.NodeExpand {
					want = "8388608, to go"
				}
				h.AddFaults(csitest.Fault{Method: method, KillCaller: moment})
				// The command may fail, because the agent is killed.
				h.Try("volume", "expand", "data", "8MiB", "--no-wait")
				if err := h.Cmd.Wait(); err == nil {
					t.Fatal("the agent was not killed")
				}
				h.Start("rec")
				h.Await("the expansion", func() bool {
					return h.Volctl("volume", "status", "data", "-o", "go-template={{.capacity}}, to go {{with .expansion}}{{.node}}{{end}}") == want
				})
				if method == csitest.NodeExpand && totalBytes(h) != "8388608" {
					t.Errorf("it has %s", totalBytes(h))
				}
			})
		}
	}
}
