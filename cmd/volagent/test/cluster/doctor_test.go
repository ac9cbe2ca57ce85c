package cluster_test

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

// putValue sets a key of the cluster in etcd to a value.
func (r *rig) putValue(key string, value any) {
	r.t.Helper()
	raw, err := json.Marshal(value)
	if err != nil {
		r.t.Fatal(err)
	}
	r.put(key, string(raw))
}

// delete deletes a key of the cluster in etcd.
func (r *rig) delete(key string) {
	r.t.Helper()
	store := r.open()
	defer func() { _ = store.Close() }()
	if _, err := store.Do(r.t.Context(), shared.Txn{Then: []shared.Op{shared.Delete(key)}}); err != nil {
		r.t.Fatal(err)
	}
}

// awaitFindings waits until the doctor finds exactly the problems with the given ids.
func awaitFindings(h *harness.Host, ids ...string) (last harness.DoctorReport) {
	h.T.Helper()
	h.Await("the findings "+strings.Join(ids, ", "), func() bool {
		last = harness.Doctor(h)
		return slices.Equal(last.IDs(), ids)
	})
	return last
}

// expectWords checks that a finding contains some words, and a command.
func expectWords(t *testing.T, f api.DoctorFinding, words ...string) {
	t.Helper()
	text := f.What + "\n" + f.Then + "\n" + f.Do
	mustSay(t, f.ID, text, words...)
	if f.Do == "" {
		t.Errorf("%s has no command", f.ID)
	}
}

// TestDoctor shows the doctor of a host each problem of a cluster that a test can make. A hold without
// a record is no lasting problem, because the agent notices it and gives it up.
func TestDoctor(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, san.Config{Attach: true, Stage: true})
	a, b := r.hosts[0], r.hosts[1]
	r.share("db")
	path := claim(a, "db", "web")
	awaitFindings(a)

	// A call that host h2 has announced and does not make. The host is alive.
	old := time.Now().Add(-3 * time.Hour)
	r.putValue(shared.CallKey("gone"), shared.Call{Executor: "h2", Incarnation: 1, Operation: "o", Call: call.CreateVolume, Since: old, Deadline: time.Hour})
	expectWords(t, awaitFindings(a, "cluster-call-open:gone").Findings[0], `host "h2", which is ready, announced CreateVolume for volume "gone"`)
	b.Must(b.Signal(15))
	a.Await("the departure of host h2", func() bool { return strings.Contains(a.Volctl("node", "list"), "away") })
	expectWords(t, awaitFindings(a, "cluster-call-open:gone").Findings[0], "which is away", "volctl node status h2")
	r.delete(shared.CallKey("gone"))
	b.Start("san")

	// A hold of this host that none of its records explains.
	r.share("ghost")
	r.putValue(shared.UseKey("ghost"), shared.Use{Access: call.SingleNodeWriter, Holder: "h1", Since: old, Generation: 5})
	r.putValue(shared.HoldKey("h1", "ghost"), shared.Hold{Access: call.SingleNodeWriter, Operation: "lost", Incarnation: 1, Since: old})
	a.Await("the end of the hold that no record explains", func() bool { return !r.has(shared.HoldKey("h1", "ghost")) })
	awaitFindings(a)

	// A volume of host h1 that has the id of a shared volume.
	a.Must(r.san.AddDisk("disk-own", 1<<20))
	a.Volctl("volume", "register", volumeFileIn(a, "own.yaml", "id: same\nplugin_id: san\nexternal_id: disk-own\n"))
	a.Must(r.san.AddDisk("disk-same", 1<<20))
	b.Volctl("volume", "register", volumeFileIn(b, "same.yaml", "id: same\nplugin_id: san\nexternal_id: disk-same\nscope: shared\n"))
	expectWords(t, awaitFindings(a, "volume-conflict:id/same").Findings[0], "a shared volume with the same id")
	a.ExpectRefusal(4, `volume "same"`, "volume", "claim", "same", "--alloc", "web", "--timeout", "1s")
	a.Volctl("volume", "deregister", "same", "-y")
	awaitFindings(a)

	// A mount that a process keeps busy after the host has lost its hold.
	busy := exec.Command("sleep", "1000") // a process of its own, because the test's process serves the SAN
	busy.Dir = path
	a.Must(busy.Start())
	defer func() { _ = busy.Process.Kill() }()
	r.dropHold("h1", "db")
	a.Await("the mount without a hold", func() bool { return slices.Contains(harness.Doctor(a).IDs(), "mount-without-hold:db") })
	expectWords(t, harness.Doctor(a).Finding("mount-without-hold:db"), "no longer shows its hold", "both may damage the data")
	a.Must(busy.Process.Kill())
	_ = busy.Wait() // the error is that of the kill
	awaitFindings(a)

	r.etcd.Stop(0)
	a.Await("the outage", func() bool { return slices.Contains(harness.Doctor(a).IDs(), "cluster-unreachable:agent") })
	expectWords(t, harness.Doctor(a).Finding("cluster-unreachable:agent"), r.etcd.Endpoints()[0], "since 20", "volctl node status")
	r.etcd.Start(0)
	awaitFindings(a)
}
