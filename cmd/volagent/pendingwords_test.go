package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/volmgr/csitest"
)

// TestPendingCallFails checks a pending call that never succeeds although the plugin is ready.
// Every screen must show the last attempt, the command that discards the call, and the consequence
// of that command.
func TestPendingCallFails(t *testing.T) {
	t.Parallel()
	const try, giveUp, means = "NodeUnstageVolume: failed in the plugin: no such backend", "volctl volume deregister data --force --forget", "the plugin then never receives these calls"
	h := newRecorded(t, "5s", func(c *csitest.Config) { c.Modify = true })
	h.register("data", "single-node-writer")
	h.volctl("volume", "claim", "data", "--alloc", "a")
	h.fault(csitest.Fault{Method: csitest.NodeUnstage, Code: codes.Internal, Message: "no such backend", Times: -1})
	says := func(what string, args ...string) {
		t.Helper()
		out := ""
		h.await(what+" to tell", func() bool {
			r := h.try(args...)
			out = strings.Join(strings.Fields(r.out+r.err), " ")
			return strings.Contains(out, try)
		})
		for _, w := range []string{giveUp, means} {
			if !strings.Contains(out, w) {
				t.Errorf("%s does not say %q:\n%s", what, w, out)
			}
		}
	}
	h.volctl("volume", "detach", "data", "a", "--without-plugin")
	says("the volume's status", "volume", "status", "data")
	says("the doctor", "doctor")

	// The same storage under another volume id must wait for the pending calls of the forced
	// deregister.
	h.volctl("volume", "deregister", "data", "--force", "-y")
	file := filepath.Join(h.dir, "again.yaml")
	h.must(os.WriteFile(file, []byte("id: again\nplugin_id: rec\nexternal_id: ext/data\n"), 0o644))
	h.volctl("volume", "register", file)
	says("the host's status", "node", "status")
	says("the status of the same storage", "volume", "status", "again")
	says("the doctor", "doctor")
	h.exits(4, "cannot be changed yet", "volume", "modify", "again", "iops=1")

	h.exits(0, "NodeUnstageVolume", append(strings.Fields(giveUp)[1:], "-y")...)
	if out := h.volctl("node", "status"); strings.Contains(out, "by force") {
		t.Errorf("the pending calls are not given up:\n%s", out)
	}
	if out := h.volctl("volume", "status", "again"); strings.Contains(out, try) {
		t.Errorf("the storage still waits:\n%s", out)
	}
}
