package cluster_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

// TestRaisedSchema raises the schema of the cluster under running agents, as a newer release does. The
// agents then only read etcd, and renew their leases. A restarted agent only reads etcd. Each volume with
// a hold stays mounted, and gets and loses claims. A detach ends on the host, and the rest of it and all
// new holds wait. When the schema is back, the hosts continue.
func TestRaisedSchema(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, san.Config{Attach: true, Stage: true})
	a, b := r.hosts[0], r.hosts[1]
	for _, id := range []string{"db", "two", "free"} {
		r.share(id, mode("single-node-multi-writer"))
	}
	path := claim(a, "db", "web")
	claim(a, "two", "web")
	before, mounts := r.value(shared.MetaKey), mountsOf(a, "db")
	hold := r.value(shared.HoldKey("h1", "db"))
	if mounts == "" || hold == "" {
		t.Fatalf("the mounts are %q, and the hold is %q", mounts, hold)
	}

	r.put(shared.MetaKey, r.withSchema(99))
	for _, h := range r.hosts {
		h.Await("the newer schema", func() bool { return strings.Contains(h.Try("node", "status").Out, "upgraded to schema 99") })
	}
	r.awaitRenewal(b)
	durable := r.durable()
	r.useUnderNewerSchema(path)
	a.Kill()
	a.Start("san")
	a.Await("the newer schema", func() bool { return strings.Contains(a.Try("node", "status").Out, "upgraded to schema 99") })
	r.useUnderNewerSchema(path)
	for _, h := range r.hosts {
		h.ExpectRefusal(6, "upgraded to schema 99", "volume", "claim", "free", "--alloc", "web", "--timeout", "1s")
	}
	b.ExpectRefusal(6, "upgraded to schema 99", "volume", "claim", "db", "--alloc", "web", "--timeout", "1s")
	b.Must(r.san.AddDisk("disk-new", 1<<20))
	b.Must(os.WriteFile(filepath.Join(b.Dir, "new.yaml"), []byte("id: new\nplugin_id: san\nexternal_id: disk-new\nscope: shared\n"), 0o600))
	b.ExpectRefusal(6, "upgraded to schema 99", "volume", "register", filepath.Join(b.Dir, "new.yaml"))

	a.Volctl("volume", "detach", "two", "web", "--timeout", "10s")
	a.ExpectOutput("upgraded to schema 99", "volume", "status", "two")
	if left := mountsOf(a, "two"); left != "" {
		t.Errorf("the detached volume is still mounted: %s", left)
	}
	if got := mountsOf(a, "db"); got != mounts {
		t.Errorf("the mounts have changed from\n%s\nto\n%s", mounts, got)
	}
	r.expectAttachments("disk-db/h1", "disk-two/h1")
	if diff := gocmp.Diff(durable, r.durable()); diff != "" {
		t.Errorf("the hosts have written to etcd (-before +after):\n%s", diff)
	}

	r.put(shared.MetaKey, before)
	claim(b, "two", "web", "--timeout", "60s") // after the pending rest of the detach
	claim(b, "free", "web", "--timeout", "60s")
	r.expectAttachments("disk-db/h1", "disk-free/h2", "disk-two/h2")
	if got := mountsOf(a, "db"); got != mounts || r.value(shared.HoldKey("h1", "db")) != hold {
		t.Errorf("the hold or the mounts have changed: %s", got)
	}
	a.Must(write(a, path, "f", "last"))
	a.Volctl("volume", "detach", "db", "web")
	if path = claim(b, "db", "web"); read(b, path, "f") != "last" {
		t.Error("host h2 reads an older text")
	}
	for _, id := range []string{"db", "two", "free"} {
		b.Volctl("volume", "detach", id, "web")
	}
	r.awaitGone()
	for _, id := range []string{"db", "two", "free"} {
		r.expectFree(id)
	}
}

// awaitRenewal waits until a host renews the lease with which it shows that it is alive.
func (r *rig) awaitRenewal(h *harness.Host) {
	r.t.Helper()
	var lease shared.Lease
	for _, kv := range r.keys() {
		if kv.Key == shared.LiveKey("h2") {
			lease = kv.Lease
		}
	}
	if lease == 0 {
		r.t.Fatal("host h2 is not alive")
	}
	shortest := r.etcd.TimeToLive(int64(lease))
	h.Await("a renewal of the lease of h2", func() bool {
		left := r.etcd.TimeToLive(int64(lease))
		renewed := left > shortest
		shortest = min(shortest, left)
		return renewed
	})
}

// useUnderNewerSchema uses the volume db on its host, and makes and detaches a further claim.
func (r *rig) useUnderNewerSchema(path string) {
	r.t.Helper()
	a := r.hosts[0]
	a.Must(write(a, path, "f", "x"))
	further := claim(a, "db", "further", "--timeout", "10s")
	a.Must(write(a, further, "f", "y"))
	a.Volctl("volume", "detach", "db", "further", "--timeout", "10s")
}

// withSchema returns the value of the key meta with another schema.
func (r *rig) withSchema(schema int) string {
	r.t.Helper()
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(r.value(shared.MetaKey)), &fields); err != nil {
		r.t.Fatal(err)
	}
	fields["schema"] = json.RawMessage(fmt.Sprint(schema))
	raw, err := json.Marshal(fields)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(raw)
}

// durable returns the keys that stay in etcd when a host ends, each with its revision.
func (r *rig) durable() map[string]int64 {
	r.t.Helper()
	keys := map[string]int64{}
	for _, kv := range r.keys() {
		if !strings.HasPrefix(kv.Key, "live/") {
			keys[kv.Key] = kv.Mod
		}
	}
	return keys
}

// mountsOf returns the lines of the mount table about a volume of the SAN.
func mountsOf(h *harness.Host, id string) string {
	var lines []string
	for line := range strings.Lines(h.Mounts()) {
		if strings.Contains(line, "disk-"+id+"/") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// expectAttachments checks which volumes are attached to which hosts, in the order of the volumes.
func (r *rig) expectAttachments(want ...string) {
	r.t.Helper()
	var has []string
	for _, a := range r.san.Attachments() {
		has = append(has, a.Volume+"/"+a.Node)
	}
	if diff := gocmp.Diff(want, has); diff != "" {
		r.t.Errorf("the SAN has other attachments (-want +has):\n%s", diff)
	}
}
