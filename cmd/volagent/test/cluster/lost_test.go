package cluster_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

// TestLostHold deletes the hold of a host, as a later takeover does. The host unmounts the volume and
// its claim ends, without a controller call. It does so at once, and also if it was stopped in the
// meantime and etcd has compacted the change. (I9)
func TestLostHold(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, san.Config{NodeOnly: true, Stage: true})
	a := r.hosts[0]
	for _, stopped := range []bool{false, true} {
		id := map[bool]string{false: "seen", true: "missed"}[stopped]
		r.share(id)
		claim(a, id, "web")
		if stopped {
			a.Must(a.Cmd.Process.Signal(syscall.SIGSTOP))
			r.etcd.Kill(0) // ends the watch of the host
			r.etcd.Start(0)
		}
		revision := r.dropHold("h1", id)
		if stopped {
			r.etcd.Compact(revision)
			a.Must(a.Cmd.Process.Signal(syscall.SIGCONT))
		}
		a.Await("the end of the claim", func() bool { return !strings.Contains(a.Volctl("claim", "list"), id) })
		a.ExpectOutput("hold-lost", "events", "--volume", id)
		a.ExpectNoMounts()

		b := r.hosts[1]
		path := claim(b, id, "web")
		b.Must(write(b, path, "f", "x"))
		b.Volctl("volume", "detach", id, "web")
		r.expectFree(id)
	}
	r.awaitGone()
}

// dropHold deletes the hold of a host, and makes the volume free. It returns the revision of that.
func (r *rig) dropHold(node, id string) int64 {
	r.t.Helper()
	store := r.open()
	defer func() { _ = store.Close() }()
	use := shared.Put(shared.UseKey(id), []byte(`{"generation":99}`))
	proof := shared.Put(shared.FencedKey(node, 1), []byte(`{"kind":"test","volumes":["`+id+`"]}`))
	res, err := store.Do(r.t.Context(), shared.Txn{Then: []shared.Op{shared.Delete(shared.HoldKey(node, id)), use, proof}})
	if err != nil {
		r.t.Fatal(err)
	}
	return res.Revision
}
