package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/volmgr/csitest"
)

// TestRegisterBesideDebt registers storage again, under the same or another volume id, while a
// pending call of a forced deregister is in progress. The plugin's own check asserts that it never
// receives two calls for this storage at the same time.
func TestRegisterBesideDebt(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"data", "other"} {
		t.Run(id, func(t *testing.T) {
			h := newRecorded(t, "20s", nil)
			h.register("data", "single-node-writer")
			h.volctl("volume", "claim", "data", "--alloc", "a")
			mark := h.mark()
			h.fault(csitest.Fault{Method: csitest.NodeUnpublish, Delay: 2 * time.Second}, csitest.Fault{Method: csitest.NodeUnstage, Delay: 2 * time.Second})
			h.volctl("volume", "detach", "data", "a", "--no-wait")
			h.await("the call", func() bool { return h.calls(mark).Count(csitest.NodeUnpublish) == 1 })
			h.volctl("volume", "deregister", "data", "-force", "-y")
			h.registerAs(id, "ext/data")
			h.volctl("volume", "claim", id, "--alloc", "b")
			h.expect(mark, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish,
				csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish)
			h.volctl("volume", "detach", id, "b")
		})
	}
}

// TestRegisterBesideHungDebt checks a plugin that hangs in a pending call. This call must not block
// a registration of the same storage. It must not block the detach of a claim that waits for the
// pending calls either.
func TestRegisterBesideHungDebt(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "2m", nil)
	h.register("data", "single-node-writer")
	h.volctl("volume", "claim", "data", "--alloc", "a")
	mark := h.mark()
	h.fault(csitest.Fault{Method: csitest.NodeUnpublish, Hang: true})
	h.volctl("volume", "detach", "data", "a", "--no-wait")
	h.await("the call", func() bool { return h.calls(mark).Count(csitest.NodeUnpublish) == 1 })
	h.volctl("volume", "deregister", "data", "-force", "-y")
	begun := time.Now()
	h.registerAs("other", "ext/data")
	h.volctl("volume", "claim", "other", "--alloc", "b", "--no-wait")
	h.volctl("volume", "status", "other")
	h.volctl("volume", "detach", "other", "b", "--timeout", "60s")
	h.volctl("volume", "claim", "other", "--alloc", "b", "--no-wait")
	h.volctl("volume", "detach", "other", "b", "--without-plugin", "--timeout", "60s")
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("it took %s", took)
	}
	h.expect(mark, csitest.NodeUnpublish)
	h.must(h.cfg.Faults().Clear())
	h.await("the debt to be paid", func() bool { return h.mounts() == "" })
}

// TestSecretOfDebt checks a secret that only the pending calls of a forced deregister still need.
// The agent must mask this secret when it shows the plugin's log.
func TestSecretOfDebt(t *testing.T) {
	t.Parallel()
	const planted = "pl4nt3d-f0r-a-debt"
	h := newRecorded(t, "10s", nil)
	h.must(os.WriteFile(filepath.Join(h.dir, "secret"), []byte(planted), 0o600))
	h.registerWith("external_id: x\nsecrets:\n  key: {file: " + h.dir + "/secret}\n")
	h.volctl("volume", "claim", "data", "--alloc", "a")
	h.fault(csitest.Fault{Method: csitest.NodeUnpublish, Code: codes.Internal, Times: -1})
	h.volctl("volume", "detach", "data", "a", "--no-wait")
	h.volctl("volume", "deregister", "data", "-force", "-y")
	h.kill()
	h.start("rec")
	log, err := os.OpenFile(h.volctl("plugin", "status", "rec", "-o", "go-template={{.log_file}}"), os.O_APPEND|os.O_WRONLY, 0)
	h.must(err)
	_, err = log.WriteString("cannot log in with " + planted + "\n")
	h.must(err)
	h.must(log.Close())
	if said := h.volctl("plugin", "logs", "rec"); strings.Contains(said, planted) || !strings.Contains(said, "cannot log in with ***") {
		t.Errorf("the log is shown as\n%s", said)
	}
	h.must(h.cfg.Faults().Clear())
	h.await("the debt to be paid", func() bool { return h.mounts() == "" })
}
