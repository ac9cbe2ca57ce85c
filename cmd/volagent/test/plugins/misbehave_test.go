package plugins_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// Each test in this file uses a plugin with a fault that a real plugin has shown. Each test asserts
// that the agent followed the rules of CSI (see ExpectNoViolations) and that no leftovers remain
// (see ExpectClean).

// These are short names for the calls in the life of a volume.
const (
	cp    = csitest.ControllerPublish
	st    = csitest.NodeStage
	pub   = csitest.NodePublish
	unpub = csitest.NodeUnpublish
	unst  = csitest.NodeUnstage
	uncp  = csitest.ControllerUnpublish
)

// early sets faults that apply from the start of the plugin.
func early(t *testing.T, c *csitest.Config, faults ...csitest.Fault) {
	t.Helper()
	if err := os.MkdirAll(c.Base, 0o711); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Faults().Add(faults...); err != nil {
		t.Fatal(err)
	}
}

// TestMisbehaving makes one call, or all calls of one method, misbehave in the plugin. The claim
// must still succeed, and the agent must make exactly the listed calls.
func TestMisbehaving(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		faults []csitest.Fault
		calls  []string
	}{
		{"stage answers OK with a mount that is dead: lstat succeeds, open says ENOTCONN",
			[]csitest.Fault{{Method: st, Twist: csitest.Dead}}, []string{cp, st, unst, st, pub}},
		{"publish answers OK with a mount that is dead",
			[]csitest.Fault{{Method: pub, Twist: csitest.Dead}}, []string{cp, st, pub, unpub, pub}},
		{"stage mounts nothing, which is legitimate, and publish mounts the volume itself",
			[]csitest.Fault{{Method: st, Effect: csitest.EffectNone, Times: -1}, {Method: pub, Twist: csitest.Direct, Times: -1}}, []string{cp, st, pub}},
		{"the staging directory is deleted and made again",
			[]csitest.Fault{{Twist: csitest.Remade, Times: -1}}, []string{cp, st, pub}},
		{"a failed stage is taken for done by the next publish, which binds the bare directory",
			[]csitest.Fault{{Method: st, Effect: csitest.EffectNone, Times: 2}}, []string{cp, st, pub, unpub, unst, st, pub, unpub, unst, st, pub}},
		{"a failed publish leaves a target with mode 000",
			[]csitest.Fault{{Method: pub, Twist: csitest.Locked, Effect: csitest.EffectDone, Code: codes.Internal}}, []string{cp, st, pub, unpub, pub}},
		{"to unpublish a target that is missing is an Internal error",
			[]csitest.Fault{{Method: pub, Code: codes.Internal}, {Method: unpub, Twist: csitest.Strict, Times: -1}}, []string{cp, st, pub, unpub, pub}},
		{"a target is never removed",
			[]csitest.Fault{{Method: unpub, Twist: csitest.Kept, Times: -1}}, []string{cp, st, pub}},
		{"unpublish says Internal although it did unmount",
			[]csitest.Fault{{Method: unpub, Code: codes.Internal, Effect: csitest.EffectDone, Times: -1}}, []string{cp, st, pub}},
		{"paths through a hidden directory are refused",
			[]csitest.Fault{{Twist: csitest.NoDots, Times: -1}}, []string{cp, st, pub}},
		{"a staging path in the argv of any process confuses it",
			[]csitest.Fault{{Twist: csitest.Argv, Times: -1}}, []string{cp, st, pub}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := harness.StartRecorded(t, "2s", nil)
			h.Register("data", "single-node-writer")
			mark := h.Mark()
			h.AddFaults(tt.faults...)
			h.UseTwice()
			if got := h.Calls(mark).Methods(); !slices.Equal(got[:min(len(got), len(tt.calls)+3)], append(tt.calls, unpub, unst, uncp)) {
				t.Errorf("calls:\n  %s", strings.Join(got, "\n  "))
			}
		})
	}
}

// TestNothingUsable checks a plugin whose mounts are never usable. The claim must fail with the
// reason, print no path, and leave no mount or directory on the host.
func TestNothingUsable(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, words string
		fault       csitest.Fault
	}{
		{"every stage is dead", "transport endpoint is not connected", csitest.Fault{Method: st, Twist: csitest.Dead, Times: -1}},
		{"every publish is dead", "transport endpoint is not connected", csitest.Fault{Method: pub, Twist: csitest.Dead, Times: -1}},
		{"every stage does nothing, so that the bare directory is published", "empty directory of the agent", csitest.Fault{Method: st, Effect: csitest.EffectNone, Times: -1}},
		{"every stage fails, and is undone before it is tried again or given up", "no such flavour", csitest.Fault{Method: st, Code: codes.Internal, Message: "no such flavour", Times: -1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := harness.StartRecorded(t, "2s", nil)
			h.Register("data", "single-node-writer")
			mark := h.Mark()
			h.AddFaults(tt.fault)
			r := h.Try("volume", "claim", "data", "--alloc", "a", "--timeout", "3s")
			if r.Code != 5 || r.Out != "" || !strings.Contains(r.Err, tt.words) || !strings.Contains(r.Err, "withdrawn") {
				t.Errorf("exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
			}
			h.ExpectClean("data")
			calls := h.Calls(mark)
			if calls.Count(st) != calls.Count(unst) {
				t.Errorf("each stage has its unstage:\n%s", calls)
			}
			h.Must(h.Config.Faults().Clear())
			h.UseTwice()
		})
	}
}

// TestLatePublish checks a NodePublishVolume and a NodeUnpublishVolume that both return OK before
// the mount appears. The agent must notice the late mount and unpublish it.
func TestLatePublish(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "5s", nil)
	h.Register("data", "single-node-writer")
	mark := h.Mark()
	h.AddFaults(csitest.Fault{Method: pub, Twist: csitest.Direct, Effect: csitest.EffectLater, Delay: 3500 * time.Millisecond})
	if r := h.Try("volume", "claim", "data", "--alloc", "a", "--timeout", "300ms"); r.Code != 5 {
		t.Fatalf("exit %d, stderr %q", r.Code, r.Err)
	}
	h.ExpectClean("data")
	if calls := h.Calls(mark); calls.Count(unpub) != 2 || calls.Count(pub) != 1 || calls.Count(unst) != 1 {
		t.Errorf("the mount that came late was not undone, once:\n%s", calls)
	}
}

// TestTimeoutIsNoFailure checks a call that exceeds its deadline but then succeeds in the plugin.
// The agent must undo the call with exactly one NodeUnstageVolume. If the late call was
// NodePublishVolume, the agent must first send exactly one NodeUnpublishVolume.
func TestTimeoutIsNoFailure(t *testing.T) {
	t.Parallel()
	for _, method := range []string{st, pub} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			h := harness.StartRecorded(t, "2s", func(c *csitest.Config) { c.Serial = true })
			h.Register("data", "single-node-writer")
			mark := h.Mark()
			h.AddFaults(csitest.Fault{Method: method, Delay: 2500 * time.Millisecond})
			r := h.Try("volume", "claim", "data", "--alloc", "a", "--timeout", "500ms")
			if r.Code != 5 || !strings.Contains(r.Err, method+" has not answered") {
				t.Errorf("exit %d, stderr %q", r.Code, r.Err)
			}
			h.ExpectClean("data")
			want := []string{cp, st, pub, unpub, unst, uncp}
			if method == st {
				want = []string{cp, st, unst, uncp}
			}
			h.ExpectCalls(mark, want...)
		})
	}
}

// TestUnstageGoesOn checks a NodeUnstageVolume that exceeds its deadline and continues in the
// plugin. When the call ends, it removes any staging mount that exists at that time. Therefore the
// next claim must wait until the call has ended.
func TestUnstageGoesOn(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "3s", func(c *csitest.Config) { c.Attach = false })
	h.Register("data", "single-node-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	mark := h.Mark()
	h.AddFaults(csitest.Fault{Method: unst, Effect: csitest.EffectLater, Delay: 2 * time.Second, Code: codes.DeadlineExceeded})
	h.Volctl("volume", "detach", "data", "a", "--no-wait")
	path := h.Volctl("volume", "claim", "data", "--alloc", "b", "--timeout", "60s")
	ended := time.Now().Add(2 * time.Second)
	h.Must(os.WriteFile(filepath.Join(path, "file"), nil, 0o644))
	h.Await("the plugin to be done", func() bool { return time.Now().After(ended) })
	if got := strings.Count(h.Mounts(), "\n"); got != 2 {
		t.Errorf("the staging and the target are to be mounted:\n%s", h.Mounts())
	}
	h.ExpectCalls(mark, unpub, unst, unst, st, pub) // no other call repaired the volume
	h.Volctl("volume", "detach", "data", "b")
	h.ExpectClean("data")
}

// TestUnstageKills checks a plugin that accepts a NodeUnstageVolume while the volume is published.
// Such a call breaks the mounts of all targets. The agent must never send it while the volume is
// published, not even to repair a missing staging mount while two claims use the volume.
func TestUnstageKills(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-multi-writer")
	one := h.Volctl("volume", "claim", "data", "--alloc", "a")
	two := h.Volctl("volume", "claim", "data", "--alloc", "b")
	h.AddFaults(csitest.Fault{Method: unst, Twist: csitest.Severs, Times: -1})
	h.AddFaults(csitest.Fault{Method: st, Code: codes.Internal})
	file := h.StartWriter(one)
	mark := h.Mark()
	harness.Unmount(t, h.StagingPath("data"))
	h.Await("the repair", func() bool {
		return strings.Contains(h.Volctl("volume", "status", "data"), "mounted, writable") && h.Calls(mark).Count(st) == 2
	})
	h.ExpectCalls(mark, st, st)
	h.Volctl("volume", "detach", "data", "b")
	h.ExpectCalls(mark, st, st, unpub)
	was := harness.FileSize(file)
	h.Await("the writer to go on", func() bool { return harness.FileSize(file) > was })
	if _, err := os.Stat(two); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the other target: %v", err)
	}
}

// TestBlockReadOnly checks a plugin that ignores the read-only flag for a block device. The agent
// must refuse the claim, because a remount cannot make a device read-only.
func TestBlockReadOnly(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "2s", func(c *csitest.Config) { c.LoopDevices = true })
	h.RegisterWith("external_id: x\ncapabilities:\n- {access_mode: single-node-writer, attachment_mode: block-device}\n")
	path := h.Volctl("volume", "claim", "data", "--alloc", "a", "--read-only")
	if f, err := os.OpenFile(path, os.O_RDWR, 0); err == nil {
		_, err = f.Write(make([]byte, 4096))
		if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
			t.Error("a read-only device can be written to")
		}
	}
	h.Volctl("volume", "detach", "data")
	h.AddFaults(csitest.Fault{Method: pub, IgnoreReadOnly: true, Times: -1})
	r := h.Try("volume", "claim", "data", "--alloc", "a", "--read-only")
	if r.Code != 1 || r.Out != "" || !strings.Contains(r.Err, "ignored read-only") {
		t.Errorf("exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	h.ExpectClean("data")
	path = h.Volctl("volume", "claim", "data", "--alloc", "a")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	h.Must(err)
	_, err = f.Write(make([]byte, 4096))
	h.Must(errors.Join(err, f.Sync(), f.Close()))
	h.Volctl("volume", "detach", "data")
	h.ExpectClean("data")
}

// TestStrangeIDs checks external ids that contain slashes, are absolute paths, or contain "..". The
// plugin receives these ids unchanged, and the agent never uses them in a path.
func TestStrangeIDs(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	for i, external := range []string{"/exports/a b/c", "nas.example/vol/1", "../../../etc", ".hidden", "zone#disk?x=1", "déjà vu"} {
		id := fmt.Sprintf("v%d", i)
		file := filepath.Join(h.Dir, id+".yaml")
		h.Must(os.WriteFile(file, fmt.Appendf(nil, "id: %s\nplugin_id: rec\nexternal_id: %q\n", id, external), 0o644))
		h.Volctl("volume", "register", file)
		mark := h.Mark()
		if path := h.Volctl("volume", "claim", id, "--alloc", ".a"); path != filepath.Join(h.Dir, "d/csi/rec/per-alloc/~2Ea", id) {
			t.Errorf("%q is at %s", external, path)
		}
		h.Volctl("volume", "detach", id)
		if calls := h.Calls(mark); len(calls.Of(external)) != len(calls) || len(calls) != 6 {
			t.Errorf("%q reached the plugin as:\n%s", external, calls)
		}
		h.ExpectClean(id)
	}
}
