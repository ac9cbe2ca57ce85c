package claims_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// TestPendingCallFails checks a pending call that always fails although the plugin is ready. All
// status commands must show the last attempt, the command that discards the call, and the
// consequence of this command.
func TestPendingCallFails(t *testing.T) {
	t.Parallel()
	const try, giveUp, means = "NodeUnstageVolume: failed in the plugin: no such backend", "volctl volume deregister data --force --forget", "the plugin then never receives these calls"
	h := harness.StartRecorded(t, "5s", func(c *csitest.Config) { c.Modify = true })
	h.Register("data", "single-node-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	h.AddFaults(csitest.Fault{Method: csitest.NodeUnstage, Code: codes.Internal, Message: "no such backend", Times: -1})
	says := func(what string, args ...string) {
		t.Helper()
		out := ""
		h.Await(what+" to tell", func() bool {
			r := h.Try(args...)
			out = strings.Join(strings.Fields(r.Out+r.Err), " ")
			return strings.Contains(out, try)
		})
		for _, w := range []string{giveUp, means} {
			if !strings.Contains(out, w) {
				t.Errorf("%s does not say %q:\n%s", what, w, out)
			}
		}
	}
	h.Volctl("volume", "detach", "data", "a", "--without-plugin")
	says("the volume's status", "volume", "status", "data")
	says("the doctor", "doctor")

	// The test registers the same storage under another volume id. The new volume must wait for the
	// pending calls of the forced deregister.
	h.Volctl("volume", "deregister", "data", "--force", "-y")
	file := filepath.Join(h.Dir, "again.yaml")
	h.Must(os.WriteFile(file, []byte("id: again\nplugin_id: rec\nexternal_id: ext/data\n"), 0o644))
	h.Volctl("volume", "register", file)
	says("the host's status", "node", "status")
	says("the status of the same storage", "volume", "status", "again")
	says("the doctor", "doctor")
	h.ExpectExit(4, "cannot be changed yet", "volume", "modify", "again", "iops=1")

	h.ExpectExit(0, "NodeUnstageVolume", append(strings.Fields(giveUp)[1:], "-y")...)
	if out := h.Volctl("node", "status"); strings.Contains(out, "by force") {
		t.Errorf("the pending calls are not given up:\n%s", out)
	}
	if out := h.Volctl("volume", "status", "again"); strings.Contains(out, try) {
		t.Errorf("the storage still waits:\n%s", out)
	}
}
