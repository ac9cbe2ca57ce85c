package provision_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/cluster/memory"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// own registers the volume "data" in the scope of a host.
func (n *node) own() {
	n.site.t.Helper()
	must(n.site.t)(n.Register(context.Background(), existing(), false))
}

// TestShare shares a volume of one host, and takes it back on another one.
func TestShare(t *testing.T) {
	t.Parallel()
	s := newSite(t, "a", "b")
	a, b := s.nodes["a"], s.nodes["b"]
	a.own()
	copied := existing()
	copied.ID = "copy"
	must(t)(b.Register(t.Context(), copied, false))
	_, _, err := a.Share(t.Context(), "data", false)
	want(t, "the other host has the storage", err, volume.ErrRefused, `host "b" uses the same external_id "vol-9" of driver ebs.csi as its own volume "copy"`)
	equal(t, "questions left", s.keys("questions/", "answers/"), []string(nil))
	if r, _ := a.Volume("data"); r.Rescoping {
		t.Error("the scope of a refused share is unknown")
	}
	if _, err := b.Deregister(t.Context(), "copy", false); err != nil {
		t.Fatal(err)
	}

	r, ch := must(t)(a.Share(t.Context(), "data", false))
	if ch.Outcome != volume.SharedNow || !r.Volume.Shared || r.Rescoping {
		t.Errorf("%+v, %+v", ch, r)
	}
	if _, ch := must(t)(a.Share(t.Context(), "data", false)); ch.Outcome != volume.Unchanged {
		t.Errorf("again: %+v", ch)
	}
	if _, ch := must(t)(b.Share(t.Context(), "data", false)); ch.Outcome != volume.Unchanged {
		t.Errorf("on the other host: %+v", ch)
	}
	equal(t, "keys", s.keys("volumes/", "holds/", "users/", "questions/", "answers/"), []string{"volumes/data"})
	_, _, err = b.Register(t.Context(), copied, false)
	want(t, "the same storage", err, volume.ErrRefused, `registered in the cluster as shared volume "data"`)

	a.use()
	_, _, err = b.Unshare(t.Context(), "data")
	want(t, "unshare in use", err, volume.ErrRefused, `host "a" uses volume "data" in mode multi-node-multi-writer`)
	if _, known := b.Volume("data"); known {
		t.Error("a refused unshare has left a record")
	}
	kept := existing()
	kept.Shared, kept.Takeover = true, volume.TakeoverNever
	kept.Capabilities = append(kept.Capabilities, call.Capability{Access: call.MultiNodeMultiWriter, Attachment: call.FileSystem})
	must(t)(a.Register(t.Context(), kept, false))
	r, ch = must(t)(a.Unshare(t.Context(), "data"))
	if r.Volume.Takeover != volume.TakeoverProven {
		t.Errorf("a volume of one host has takeover: %s", r.Volume.Takeover)
	}
	if ch.Outcome != volume.UnsharedNow || r.Volume.Shared || r.Rescoping || r.Node.Hold != (volume.Hold{}) {
		t.Errorf("unshare: %+v, %+v", ch, r)
	}
	equal(t, "keys left", s.keys("volumes/", "holds/", "users/", "use/", "external/", "notices/"), []string(nil))
	_, _, err = b.Unshare(t.Context(), "data")
	want(t, "unknown", err, volume.ErrNotFound, `no volume "data"`)
}

// TestShareMounted shares a mounted volume. The host gets its hold in the same transaction.
func TestShareMounted(t *testing.T) {
	t.Parallel()
	s := newSite(t, "a", "b")
	a := s.nodes["a"]
	a.own()
	a.claim(t, "data")
	r, _ := must(t)(a.Share(t.Context(), "data", false))
	if h := r.Node.Hold; h.State != volume.Present || h.Token.Revision == 0 || h.Access != call.SingleNodeWriter {
		t.Errorf("the hold is %+v", h)
	}
	equal(t, "keys", s.keys("volumes/", "holds/"), []string{"holds/a/data", "volumes/data"})
	_, _, err := s.nodes["b"].Unshare(t.Context(), "data")
	want(t, "unshare on the other host", err, volume.ErrRefused, `host "a" uses volume "data"`)
	r, _ = must(t)(a.Unshare(t.Context(), "data"))
	if len(r.Claims) != 1 || r.Volume.Shared {
		t.Errorf("after unshare: %+v", r)
	}
	equal(t, "keys left", s.keys("volumes/", "holds/", "users/", "use/", "external/"), []string(nil))
}

// TestShareSilent shares a volume while a registered host does not answer.
func TestShareSilent(t *testing.T) {
	t.Parallel()
	s := newSite(t, "a")
	a := s.nodes["a"]
	a.own()
	s.do(shared.Put(shared.NodeKey("gone"), []byte(`{"incarnation":1,"state":"ready"}`)))
	_, _, err := a.Share(t.Context(), "data", false)
	want(t, "silent", err, volume.ErrRefused, "host gone has not answered", "volctl volume share data --force")
	equal(t, "questions left", s.keys("questions/", "answers/"), []string(nil))
	if r, _ := must(t)(a.Share(t.Context(), "data", true)); !r.Volume.Shared {
		t.Errorf("by force: %+v", r.Volume)
	}
}

// TestUnsharedElsewhere interrupts an unshare on one host, and unshares the volume on another one. The
// first host does not use the storage after that, and says why.
func TestUnsharedElsewhere(t *testing.T) {
	t.Parallel()
	s := newSite(t, "a", "b")
	a, b := s.nodes["a"], s.nodes["b"]
	a.own()
	must(t)(a.Share(t.Context(), "data", false))
	a.interrupt(memory.Unreachable, false)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := a.unshareOnce(ctx); err == nil {
		t.Fatal("the interrupted unshare succeeds")
	}
	if err := b.unshareOnce(t.Context()); err != nil {
		t.Fatal(err)
	}

	a.store.SetFaults(nil)
	s.await("the cluster", func() bool { return a.holds.Cluster(volume.Record{}).Away == "" })
	want(t, "a claim of the first host", a.holds.Fetch(t.Context(), "data"), volume.ErrRefused, `not clear which host has the volume now`)
	if r, _ := a.Volume("data"); !r.Rescoping {
		t.Errorf("the first host keeps the volume: %+v", r)
	}
	if r, _ := b.Volume("data"); r.Rescoping || r.Volume.Shared {
		t.Errorf("the second host does not have the volume: %+v", r)
	}
}

// TestShareInterrupted stops a share and an unshare after each of their steps. The volume then has one
// scope in the cluster and on the host, and the command can be repeated.
func TestShareInterrupted(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		fault  memory.Fault // of the transaction
		update bool         // whether the last update of the record fails instead
		shared bool         // the scope after that, for share; the opposite for unshare
	}{
		"before the transaction":   {fault: memory.Lost},
		"after the transaction":    {fault: memory.LostExecuted, shared: true},
		"before the last update":   {update: true, shared: true},
		"the cluster is not there": {fault: memory.Unreachable},
	} {
		for _, un := range []bool{false, true} {
			t.Run(map[bool]string{false: "share ", true: "unshare "}[un]+name, func(t *testing.T) {
				t.Parallel()
				s := newSite(t, "a")
				a := s.nodes["a"]
				change := a.unshareOnce
				a.own()
				if un {
					must(t)(a.Share(t.Context(), "data", true))
				} else {
					change = a.shareOnce
				}
				a.interrupt(tt.fault, tt.update)
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				if err := change(ctx); err == nil {
					t.Fatal("the interrupted command succeeds")
				}
				r, _ := a.Volume("data")
				if r.Volume.Shared || !r.Rescoping {
					t.Fatalf("the record is %+v", r)
				}

				// Without an answer of the cluster, the host neither uses nor destroys the volume.
				a.store.SetFaults(func(shared.Txn) memory.Fault { return memory.Unreachable })
				want(t, "a claim without etcd", a.holds.Fetch(t.Context(), "data"), volume.ErrPluginUnavailable, `cannot look for volume "data"`)
				want(t, "a delete without etcd", a.Delete(t.Context(), "data", "data"), volume.ErrPluginUnavailable)
				a.store.SetFaults(nil)
				s.await("the cluster", func() bool { return a.holds.Cluster(volume.Record{}).Away == "" })

				if err := a.holds.Fetch(t.Context(), "data"); err != nil {
					t.Fatal(err)
				}
				_, defined := s.definition("data")
				if r, _ = a.Volume("data"); r.Rescoping || r.Volume.Shared != defined || defined != (tt.shared != un) {
					t.Errorf("the cluster has the volume: %t, the record is %+v", defined, r)
				}
				if err := change(t.Context()); err != nil {
					t.Error(err)
				}
				if r, _ = a.Volume("data"); r.Volume.Shared == un || r.Rescoping {
					t.Errorf("after the repetition, the record is %+v", r)
				}
			})
		}
	}
}

func (n *node) shareOnce(ctx context.Context) error {
	_, _, err := n.Share(ctx, "data", true)
	return err
}

func (n *node) unshareOnce(ctx context.Context) error {
	_, _, err := n.Unshare(ctx, "data")
	return err
}

// interrupt injects a fault to the transaction that adds or removes the definition, or makes the
// second update of the record fail.
func (n *node) interrupt(f memory.Fault, update bool) {
	if update {
		n.records.Lock()
		n.failAt = n.updates + 2
		if _, known := n.volumes["data"]; known && !n.volumes["data"].Volume.Shared {
			n.failAt++ // share first looks for leftovers
		}
		n.records.Unlock()
		return
	}
	executed := false
	n.store.SetFaults(func(txn shared.Txn) memory.Fault {
		if changes := slices.ContainsFunc(txn.Then, func(o shared.Op) bool { return o.Kind != shared.OpGet && o.Key == "volumes/data" }); changes {
			executed = true
		}
		if executed { // from now on, the cluster does not answer
			return f
		}
		return memory.None
	})
}

// TestAdmitRescoping checks that no claim begins while the scope of a volume is being changed.
func TestAdmitRescoping(t *testing.T) {
	t.Parallel()
	s := newSite(t, "a")
	a := s.nodes["a"]
	a.own()
	var claims []error
	a.store.SetFaults(func(txn shared.Txn) memory.Fault {
		if slices.ContainsFunc(txn.Then, func(o shared.Op) bool { return o.Kind == shared.OpPut && o.Key == "volumes/data" }) {
			r, _ := a.Volume("data")
			_, err := volume.Admit(r, volume.Request{Alloc: "web", StagingPath: "/s", Target: "/t"}, a.view.Info, time.Now())
			claims = append(claims, err, a.holds.Fetch(context.Background(), "data"))
		}
		return memory.None
	})
	must(t)(a.Share(t.Context(), "data", true))
	if len(claims) != 2 {
		t.Fatalf("the share had %d transactions", len(claims)/2)
	}
	want(t, "a claim", claims[0], volume.ErrDetaching, `the scope of volume "data" is being changed`)
	want(t, "a look at the cluster", claims[1], volume.ErrPluginUnavailable, `the scope of volume "data" is being changed`)
}

// TestUnshareChanged refuses to take back a volume that another host has changed meanwhile.
func TestUnshareChanged(t *testing.T) {
	t.Parallel()
	s := newSite(t, "a", "b")
	a, b := s.nodes["a"], s.nodes["b"]
	must(t)(b.Register(t.Context(), sharedDisk(), false))
	once := false
	a.store.SetFaults(func(txn shared.Txn) memory.Fault {
		if slices.ContainsFunc(txn.Then, func(o shared.Op) bool { return o.Kind == shared.OpDelete && o.Key == "volumes/data" }) && !once {
			once = true
			changed := sharedDisk()
			changed.Reclaim = "delete"
			must(t)(b.Register(context.Background(), changed, false))
		}
		return memory.None
	})
	_, _, err := a.Unshare(t.Context(), "data")
	want(t, "changed meanwhile", err, volume.ErrRefused, `another host has changed volume "data" meanwhile`, "unshare data")
	if _, known := a.Volume("data"); known {
		t.Error("a refused unshare has left a record")
	}
	if r, _ := must(t)(a.Unshare(t.Context(), "data")); r.Volume.Reclaim != "delete" {
		t.Errorf("the change is lost: %+v", r.Volume)
	}
}

// TestShareRefused checks which volumes cannot be shared.
func TestShareRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, "a")
	a := s.nodes["a"]
	a.own()
	for name, tt := range map[string]struct {
		change func(*volume.Record)
		words  string
	}{
		"being deleted":      {func(r *volume.Record) { r.Volume.Provision = volume.Deleting }, "deleting has not finished"},
		"being expanded":     {func(r *volume.Record) { r.Volume.Expansion.Want = 9 }, "its expansion has not finished"},
		"being modified":     {func(r *volume.Record) { r.Volume.Modifying = map[string]string{"a": "b"} }, "an earlier modify has not finished"},
		"with a failed side": {func(r *volume.Record) { r.Node.Attached = volume.Unknown }, "still undoing or checking"},
		"being taken down":   {func(r *volume.Record) { r.Node.Staged = volume.Present }, "it is being taken down"},
		"storage of one host": {func(r *volume.Record) {
			r.Volume.Topologies = []map[string]string{{"host": "a"}}
		}, "its storage can be reached only from"},
	} {
		was, _ := a.Volume("data")
		r := was
		tt.change(&r)
		a.put(r)
		_, _, err := a.Share(t.Context(), "data", true)
		want(t, name, err, volume.ErrRefused, tt.words)
		a.put(was)
	}
	_, _, err := a.Share(t.Context(), "nosuch", false)
	want(t, "unknown", err, volume.ErrNotFound, `no volume "nosuch"`)
	equal(t, "keys", s.keys("volumes/", "external/", "questions/"), []string(nil))

	alone := newWorld()
	alone.mustRegister(t, existing())
	_, _, err = alone.service().Share(t.Context(), "data", false)
	want(t, "without a cluster", err, volume.ErrRefused, "this host belongs to no cluster")
}

// put stores a record.
func (n *node) put(r volume.Record) {
	n.records.Lock()
	defer n.records.Unlock()
	n.volumes[r.Volume.ID] = r
}
