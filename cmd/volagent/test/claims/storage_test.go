package claims_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// TestRegisterBesideDebt registers storage again, under the same or another volume id, while a
// pending call of a forced deregister is in progress. The plugin checks that it never receives two
// calls for this storage at the same time.
func TestRegisterBesideDebt(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"data", "other"} {
		t.Run(id, func(t *testing.T) {
			h := harness.StartRecorded(t, "20s", nil)
			h.Register("data", "single-node-writer")
			h.Volctl("volume", "claim", "data", "--alloc", "a")
			mark := h.Mark()
			h.AddFaults(csitest.Fault{Method: csitest.NodeUnpublish, Delay: 2 * time.Second}, csitest.Fault{Method: csitest.NodeUnstage, Delay: 2 * time.Second})
			h.Volctl("volume", "detach", "data", "a", "--no-wait")
			h.Await("the call", func() bool { return h.Calls(mark).Count(csitest.NodeUnpublish) == 1 })
			h.Volctl("volume", "deregister", "data", "-force", "-y")
			h.RegisterAs(id, "ext/data")
			h.Volctl("volume", "claim", id, "--alloc", "b")
			h.ExpectCalls(mark, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish,
				csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish)
			h.Volctl("volume", "detach", id, "b")
		})
	}
}

// TestRegisterBesideHungDebt checks a plugin that hangs in a pending call. This call must not block
// a registration of the same storage. It must not block the detach of a claim that waits for the
// pending calls either.
func TestRegisterBesideHungDebt(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "2m", nil)
	h.Register("data", "single-node-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	mark := h.Mark()
	h.AddFaults(csitest.Fault{Method: csitest.NodeUnpublish, Hang: true})
	h.Volctl("volume", "detach", "data", "a", "--no-wait")
	h.Await("the call", func() bool { return h.Calls(mark).Count(csitest.NodeUnpublish) == 1 })
	h.Volctl("volume", "deregister", "data", "-force", "-y")
	begun := time.Now()
	h.RegisterAs("other", "ext/data")
	h.Volctl("volume", "claim", "other", "--alloc", "b", "--no-wait")
	h.Volctl("volume", "status", "other")
	h.Volctl("volume", "detach", "other", "b", "--timeout", "60s")
	h.Volctl("volume", "claim", "other", "--alloc", "b", "--no-wait")
	h.Volctl("volume", "detach", "other", "b", "--without-plugin", "--timeout", "60s")
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("it took %s", took)
	}
	h.ExpectCalls(mark, csitest.NodeUnpublish)
	h.Must(h.Config.Faults().Clear())
	h.Await("the debt to be paid", func() bool { return h.Mounts() == "" })
}

// TestSecretOfDebt checks a secret that only the pending calls of a forced deregister still need.
// The agent must mask this secret when it shows the plugin's log.
func TestSecretOfDebt(t *testing.T) {
	t.Parallel()
	const planted = "pl4nt3d-f0r-a-debt"
	h := harness.StartRecorded(t, "10s", nil)
	h.Must(os.WriteFile(filepath.Join(h.Dir, "secret"), []byte(planted), 0o600))
	h.RegisterWith("external_id: x\nsecrets:\n  key: {file: " + h.Dir + "/secret}\n")
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	h.AddFaults(csitest.Fault{Method: csitest.NodeUnpublish, Code: codes.Internal, Times: -1})
	h.Volctl("volume", "detach", "data", "a", "--no-wait")
	h.Volctl("volume", "deregister", "data", "-force", "-y")
	h.Kill()
	h.Start("rec")
	log, err := os.OpenFile(h.Volctl("plugin", "status", "rec", "-o", "go-template={{.log_file}}"), os.O_APPEND|os.O_WRONLY, 0)
	h.Must(err)
	_, err = log.WriteString("cannot log in with " + planted + "\n")
	h.Must(err)
	h.Must(log.Close())
	if said := h.Volctl("plugin", "logs", "rec"); strings.Contains(said, planted) || !strings.Contains(said, "cannot log in with ***") {
		t.Errorf("the log is shown as\n%s", said)
	}
	h.Must(h.Config.Faults().Clear())
	h.Await("the debt to be paid", func() bool { return h.Mounts() == "" })
}
