package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

// TestCompaction compacts etcd up to the newest revision after each step, while one host has a volume
// and two others wait for it. The last host does not run while the volume moves and etcd restarts, so
// its watches ask for revisions that no longer exist. It still gets the volume, and learns that the
// definition has changed. (I8, I9)
func TestCompaction(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 3, san.Config{Attach: true, Stage: true})
	a, b, c := r.hosts[0], r.hosts[1], r.hosts[2]
	r.share("db", mode("single-node-multi-writer"))
	claim(a, "db", "web")
	second := b.StartVolctl("volume", "claim", "db", "--alloc", "web", "--timeout", "90s")
	awaitRefusal(b, `held by host "h1"`)
	r.compact()

	third := c.StartVolctl("volume", "claim", "db", "--alloc", "web", "--timeout", "90s")
	awaitRefusal(c, `held by host "h1"`)
	harness.Freeze(c, c.Cmd.Process)
	for i := range 5 {
		r.share(fmt.Sprintf("filler%d", i))
		r.compact()
	}
	a.Volctl("volume", "detach", "db", "web")
	expectDone(t, "the claim of h2", second)
	r.compact()
	file := filepath.Join(a.Dir, "changed.yaml")
	text := "id: db\nplugin_id: san\nexternal_id: disk-db\nscope: shared\nreclaim: delete\n" + mode("single-node-multi-writer") + "\n"
	a.Must(os.WriteFile(file, []byte(text), 0o600))
	a.Volctl("volume", "register", file)
	r.etcd.Kill(0)
	r.etcd.Start(0)
	b.Volctl("volume", "detach", "db", "web", "--timeout", "60s")
	r.compact()
	a.Must(c.Cmd.Process.Signal(syscall.SIGCONT))

	expectDone(t, "the claim of h3", third)
	c.Await("the changed definition on h3", func() bool { return statusOf(c).Spec.Reclaim == api.ReclaimDelete })
	c.Volctl("volume", "detach", "db", "web")
	r.awaitGone()
	r.expectFree("db")
}

// compact compacts etcd up to its newest revision.
func (r *rig) compact() {
	r.t.Helper()
	store := r.open()
	defer func() { _ = store.Close() }()
	res, err := store.Do(r.t.Context(), shared.Txn{Then: []shared.Op{shared.Get(shared.MetaKey)}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.etcd.Compact(res.Revision)
}

// awaitRefusal waits until a host shows why its claim of the volume db must wait.
func awaitRefusal(h *harness.Host, words string) {
	h.T.Helper()
	awaitRefusalOf(h, "db", words)
}

// awaitRefusalOf waits until the status of a volume on a host contains the reason why a claim waits.
func awaitRefusalOf(h *harness.Host, id, words string) {
	h.T.Helper()
	h.Await("the refusal of "+id, func() bool { return strings.Contains(h.Try("volume", "status", id).Out, words) })
}
