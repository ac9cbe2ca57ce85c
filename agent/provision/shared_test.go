package provision_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/cluster/memory"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// lost is the error of a call whose answer was lost, and rejected that of a call without an effect.
var (
	lost     = made(volume.CodeDeadlineExceeded, volume.RetryBackoff, false)
	rejected = made(volume.CodeInvalidArgument, volume.RetryChange, true)
)

// must fails the test if an operation has failed, and returns its result.
func must(t *testing.T) func(volume.Record, volume.Change, error) (volume.Record, volume.Change) {
	return func(r volume.Record, ch volume.Change, err error) (volume.Record, volume.Change) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return r, ch
	}
}

// fault returns a function that gives a fault to the n-th transaction that changes something.
func fault(f memory.Fault, n int) func(shared.Txn) memory.Fault {
	return func(txn shared.Txn) memory.Fault {
		changes := slices.ContainsFunc(txn.Then, func(o shared.Op) bool { return o.Kind != shared.OpGet && !strings.HasPrefix(o.Key, "status/") })
		if !changes {
			return memory.None
		}
		if n--; n == 0 {
			return f
		}
		return memory.None
	}
}

func TestCreateShared(t *testing.T) {
	t.Parallel()
	s := newSite(t, "a", "b")
	a, b := s.nodes["a"], s.nodes["b"]
	var announced []string
	s.during = func(string, call.Method) { announced = append(announced, s.keys("calls/")...) }

	r, ch := must(t)(a.Create(t.Context(), sharedSpec(), false))
	name := regexp.MustCompile(`^[a-z0-9]{8}-data-[a-z0-9]{12}$`)
	if ch.Outcome != volume.Created || r.Volume.ExternalID != "vol-1" || !name.MatchString(r.Volume.Name) {
		t.Errorf("%+v, %+v", ch, r.Volume)
	}
	equal(t, "calls in the cluster during the create", announced, []string{"calls/data"})
	equal(t, "keys", s.keys("volumes/", "external/", "calls/", "use/"), []string{shared.ExternalKey("ebs.csi", "vol-1"), "use/data", "volumes/data"})
	if d, _ := s.definition("data"); d.Operation == "" || !strings.HasSuffix(r.Volume.Name, d.Operation) || d.Volume.Provision != volume.Provisioned {
		t.Errorf("the definition is %+v", d)
	}
	if len(a.Volumes()) > 0 {
		t.Errorf("the host has a record without a claim: %+v", a.Volumes())
	}

	// Every host sees the volume at once, and creates no second one.
	if _, ch = must(t)(b.Create(t.Context(), sharedSpec(), false)); ch.Outcome != volume.Unchanged {
		t.Errorf("on the other host: %+v", ch)
	}
	differs := sharedSpec()
	differs.Parameters = map[string]string{"type": "io2"}
	_, _, err := b.Create(t.Context(), differs, false)
	want(t, "with other values", err, volume.ErrRefused, "exists and differs")
	_, _, err = b.Create(t.Context(), spec(), false)
	want(t, "with another scope", err, volume.ErrRefused, "is registered with scope shared", "unshare")
	equal(t, "calls", len(s.made()), 1)
	dry := sharedSpec()
	dry.ID = "other"
	must(t)(b.Create(t.Context(), dry, true))
	equal(t, "volumes after a dry run", s.keys("volumes/"), []string{"volumes/data"})
}

// TestCreateSharedName checks that a given name is kept, and that a volume and its successor never
// have the same name.
func TestCreateSharedName(t *testing.T) {
	t.Parallel()
	s := newSite(t, "a")
	a := s.nodes["a"]
	v := sharedSpec()
	v.ID = strings.Repeat("x", 100)
	first, _ := must(t)(a.Create(t.Context(), v, false))
	if err := a.Delete(t.Context(), v.ID, ""); err != nil {
		t.Fatal(err)
	}
	second, _ := must(t)(a.Create(t.Context(), v, false))
	if first.Volume.Name == second.Volume.Name || len(first.Volume.Name) > 63 {
		t.Errorf("the names are %q and %q", first.Volume.Name, second.Volume.Name)
	}
	named := sharedSpec()
	named.Name = "mine"
	if r, _ := must(t)(a.Create(t.Context(), named, false)); r.Volume.Name != "mine" {
		t.Errorf("the name is %q", r.Volume.Name)
	}
}

// TestLostAnswers loses the answer of each transaction of create, expand, modify and delete. Each
// operation makes its call once, and leaves no announced call.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	for _, f := range []memory.Fault{memory.Lost, memory.LostExecuted} {
		for n := range 3 {
			t.Run(fmt.Sprintf("fault %d of transaction %d", f, n+1), func(t *testing.T) {
				t.Parallel()
				s := newSite(t, "a")
				a := s.nodes["a"]
				inject := func() { a.store.SetFaults(fault(f, n+1)) }
				inject()
				must(t)(a.Create(t.Context(), sharedSpec(), false))
				inject()
				must(t)(a.Expand(t.Context(), "data", 20, 0))
				inject()
				must(t)(a.Modify(t.Context(), "data", map[string]string{"iops": "7"}))
				inject()
				if err := a.Delete(t.Context(), "data", ""); err != nil {
					t.Error(err)
				}
				calls := s.made()
				for i, name := range []string{"a create ", "a expand vol-1 20", "a modify vol-1", "a delete vol-1"} {
					if len(calls) != 4 || !strings.HasPrefix(calls[i], name) {
						t.Fatalf("the calls are %q", calls)
					}
				}
				equal(t, "keys left", s.keys("volumes/", "external/", "calls/", "use/", "notices/"), []string(nil))
			})
		}
	}
}

// TestCreateSharedUnknown continues a create of unknown outcome on another host.
func TestCreateSharedUnknown(t *testing.T) {
	t.Parallel()
	s := newSite(t, "a", "b")
	a, b := s.nodes["a"], s.nodes["b"]
	a.view.ControllerTimeout = time.Hour
	s.fails[call.CreateVolume] = lost
	_, _, err := a.Create(t.Context(), sharedSpec(), false)
	want(t, "unknown", err, volume.ErrTimeout, "it is unknown whether", "repeat the create on any host")
	_, _, err = b.Create(t.Context(), sharedSpec(), false)
	want(t, "beside the call", err, volume.ErrRefused, `host "a" is calling CreateVolume for volume "data" since`)
	_, _, err = b.Register(t.Context(), sharedDisk(), false)
	want(t, "register", err, volume.ErrRefused, `the create of volume "data" has not finished`)
	err = b.Delete(t.Context(), "data", "")
	want(t, "delete", err, volume.ErrRefused, `the create of volume "data" has not finished`, "deregister data --force")
	_, err = b.Deregister(t.Context(), "data", true)
	want(t, "deregister by force beside the call", err, volume.ErrRefused, `host "a" is calling`)
	_, err = a.Deregister(t.Context(), "data", true)
	want(t, "deregister by force on the calling host", err, volume.ErrRefused, `host "a" is calling`)

	s.do(shared.Delete(shared.CallKey("data"))) // as after the deadline
	_, err = b.Deregister(t.Context(), "data", false)
	want(t, "deregister", err, volume.ErrRefused, "creating has not finished")
	must(t)(b.Create(t.Context(), sharedSpec(), false))
	calls := s.made()
	if len(calls) != 2 || strings.TrimPrefix(calls[0], "a ") != strings.TrimPrefix(calls[1], "b ") {
		t.Errorf("the calls are %q", calls)
	}
}

// TestCreateSharedTakenOverUnanswered loses the transaction with the answer of CreateVolume. Another host ends the
// call meanwhile. The create does not claim success, and another host can repeat it.
func TestCreateSharedTakenOverUnanswered(t *testing.T) {
	t.Parallel()
	s := newSite(t, "a", "b")
	a, b := s.nodes["a"], s.nodes["b"]
	over := false
	a.store.SetFaults(func(txn shared.Txn) memory.Fault {
		ends := func(o shared.Op) bool { return o.Kind == shared.OpDelete && o.Key == shared.CallKey("data") }
		if over || !slices.ContainsFunc(txn.Then, ends) {
			return memory.None
		}
		over = true
		s.do(shared.Delete(shared.CallKey("data")))
		return memory.Lost
	})
	_, _, err := a.Create(t.Context(), sharedSpec(), false)
	want(t, "taken over", err, volume.ErrRefused, `another host has taken over the call for volume "data"`, `external_id "vol-1"`, "repeat the create")
	r, _ := must(t)(b.Create(t.Context(), sharedSpec(), false))
	if r.Volume.Provision != volume.Provisioned || !over {
		t.Errorf("the repeated create has made %+v", r.Volume)
	}
	equal(t, "announced calls", s.keys("calls/"), []string(nil))
}

// TestLeaveCall checks that a call of unknown outcome ends after its deadline, and that the end of an
// earlier call does not end a repetition.
func TestLeaveCall(t *testing.T) {
	t.Parallel()
	s := newSite(t, "a", "b")
	a, b := s.nodes["a"], s.nodes["b"]
	s.fails[call.CreateVolume] = lost
	_, _, err := a.Create(t.Context(), sharedSpec(), false)
	want(t, "unknown", err, volume.ErrTimeout)
	s.during = func(string, call.Method) {
		time.Sleep(10 * a.view.ControllerTimeout) // the end of the earlier call is due in this time
		equal(t, "calls during the repetition", s.keys("calls/"), []string{"calls/data"})
	}
	s.fails[call.CreateVolume] = lost
	_, _, err = a.Create(t.Context(), sharedSpec(), false)
	want(t, "unknown again", err, volume.ErrTimeout)
	s.during = nil
	s.await("the end of the call", func() bool { return len(s.keys("calls/")) == 0 })
	if _, err = b.Deregister(t.Context(), "data", true); err != nil {
		t.Error(err)
	}
	equal(t, "keys left", s.keys("volumes/", "external/", "calls/", "use/"), []string(nil))
}

// TestCreateSharedRefused checks that a refused create leaves nothing, also if the plugin returns
// storage of another volume.
func TestCreateSharedRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, "a")
	a := s.nodes["a"]
	s.fails[call.CreateVolume] = rejected
	_, _, err := a.Create(t.Context(), sharedSpec(), false)
	want(t, "refused", err, volume.ErrInvalid, "refuses the request")
	equal(t, "keys left", s.keys("volumes/", "external/", "calls/", "use/"), []string(nil))

	must(t)(a.Create(t.Context(), sharedSpec(), false))
	d, _ := s.definition("data")
	other := sharedSpec()
	other.ID, other.Name = "other", d.Volume.Name
	_, _, err = a.Create(t.Context(), other, false)
	want(t, "storage of another volume", err, volume.ErrRefused, `already registered in the cluster as volume "data"`)
	equal(t, "keys left", s.keys("volumes/", "external/", "calls/", "use/"), []string{shared.ExternalKey("ebs.csi", d.Volume.ExternalID), "use/data", "volumes/data"})
}

// TestCreateSharedTakenOver checks that a late create does not remove a volume whose create another
// host has continued and finished, and that a deregistered volume does not come back.
func TestCreateSharedTakenOver(t *testing.T) {
	t.Parallel()
	s := newSite(t, "a", "b")
	a, b := s.nodes["a"], s.nodes["b"]
	s.during = func(host string, _ call.Method) {
		if host == "a" {
			s.do(shared.Delete(shared.CallKey("data"))) // as a host that takes the call over
			must(t)(b.Create(context.Background(), sharedSpec(), false))
		}
	}
	_, _, err := a.Create(t.Context(), sharedSpec(), false)
	want(t, "late", err, volume.ErrRefused, "taken over", `has created its storage as external_id "vol-1"`)
	if d, ok := s.definition("data"); !ok || d.Volume.ExternalID != "vol-1" || d.Volume.Provision != volume.Provisioned {
		t.Errorf("the volume of the other host is %+v, %t", d, ok)
	}

	s.during = func(string, call.Method) {
		s.do(shared.Delete(shared.CallKey("next")), shared.Delete(shared.VolumeKey("next")), shared.Delete(shared.UseKey("next")))
	}
	next := sharedSpec()
	next.ID = "next"
	_, _, err = a.Create(t.Context(), next, false)
	want(t, "deregistered", err, volume.ErrRefused, "deregistered meanwhile", `external_id "vol-2"`)
	equal(t, "volumes", s.keys("volumes/"), []string{"volumes/data"})
}

// TestCreateSharedOutage checks that the announced call ends after etcd was away at the end of the
// create, and that the create can then be repeated.
func TestCreateSharedOutage(t *testing.T) {
	t.Parallel()
	s := newSite(t, "a", "b")
	a, b := s.nodes["a"], s.nodes["b"]
	s.during = func(string, call.Method) {
		a.store.SetFaults(func(shared.Txn) memory.Fault { return memory.Unreachable })
	}
	_, _, err := a.Create(t.Context(), sharedSpec(), false)
	want(t, "etcd away", err, volume.ErrPluginUnavailable, "is etcd up")
	s.during = nil
	equal(t, "calls during the outage", s.keys("calls/"), []string{"calls/data"})
	a.store.SetFaults(nil)
	s.await("the end of the call", func() bool { return len(s.keys("calls/")) == 0 })
	must(t)(b.Create(t.Context(), sharedSpec(), false))
	equal(t, "storage volumes", len(s.disks), 1)
}

// TestRegisterShared registers one file on two hosts, changes it, and refuses other scopes.
func TestRegisterShared(t *testing.T) {
	t.Parallel()
	s := newSite(t, "a", "b")
	a, b := s.nodes["a"], s.nodes["b"]
	if _, ch := must(t)(a.Register(t.Context(), sharedDisk(), false)); ch.Outcome != volume.Registered {
		t.Errorf("%+v", ch)
	}
	if _, ch := must(t)(b.Register(t.Context(), sharedDisk(), false)); ch.Outcome != volume.Unchanged {
		t.Errorf("the same file: %+v", ch)
	}
	changed := sharedDisk()
	changed.Context = map[string]string{"a": "b"}
	must(t)(b.Register(t.Context(), changed, true))
	if d, _ := s.definition("data"); len(d.Volume.Context) > 0 {
		t.Error("a dry run has changed the definition")
	}
	if r, ch := must(t)(b.Register(t.Context(), changed, false)); ch.Outcome != volume.Updated || r.Volume.Context["a"] != "b" {
		t.Errorf("the changed file: %+v", ch)
	}

	a.use()
	changed.MountOptions.MountFlags = []string{"noatime"}
	_, _, err := b.Register(t.Context(), changed, false)
	want(t, "in use", err, volume.ErrRefused, "only while the volume is free")
	changed.MountOptions.MountFlags = nil
	changed.Reclaim = "delete"
	must(t)(b.Register(t.Context(), changed, false))
	s.await("the record of the user", func() bool { r, _ := a.Volume("data"); return r.Volume.Reclaim == "delete" })
	changed.Takeover = volume.TakeoverNever
	must(t)(b.Register(t.Context(), changed, false))
	s.await("takeover in the record of the user", func() bool { r, _ := a.Volume("data"); return r.Volume.Takeover == volume.TakeoverNever })

	_, _, err = b.Register(t.Context(), existing(), false)
	want(t, "scope host for a shared volume", err, volume.ErrRefused, "registered with scope shared, and the request has scope host", "unshare data")
	copied := sharedDisk()
	copied.ID = "copy"
	_, _, err = b.Register(t.Context(), copied, false)
	want(t, "the same storage", err, volume.ErrRefused, `already registered in the cluster as volume "data"`)
	copied.Shared = false
	_, _, err = b.Register(t.Context(), copied, false)
	want(t, "the same storage in scope host", err, volume.ErrRefused, `registered in the cluster as shared volume "data"`)
	copied.ExternalID = "vol-10"
	copied.Takeover = volume.TakeoverNever
	_, _, err = b.Register(t.Context(), copied, false)
	want(t, "a takeover in scope host", err, volume.ErrRefused, `volume "copy" cannot have takeover: never: its scope is host`)
	copied.Takeover = volume.TakeoverProven
	must(t)(b.Register(t.Context(), copied, false))
	copied.Shared = true
	_, _, err = b.Register(t.Context(), copied, false)
	want(t, "scope shared for an own volume", err, volume.ErrRefused, "registered with scope host, and the request has scope shared", "volume share copy")

	// A file without a scope has the scope of its plugin.
	anyScope := volume.Volume{ID: "any", PluginID: "ebs", ExternalID: "vol-11", AnyScope: true, Capabilities: spec().Capabilities}
	b.view.Scope = plugin.ScopeShared
	if r, _ := must(t)(b.Register(t.Context(), anyScope, false)); !r.Volume.Shared {
		t.Error("a file without a scope does not have the scope of its plugin")
	}
	b.view.Scope = plugin.ScopeHost
	anyScope.ID, anyScope.ExternalID = "any2", "vol-12"
	if r, _ := must(t)(b.Register(t.Context(), anyScope, false)); r.Volume.Shared {
		t.Error("a volume of a plugin with scope host is shared")
	}
	anyScope.ID, anyScope.ExternalID, anyScope.Shared, anyScope.AnyScope = "any3", "vol-13", true, false
	_, _, err = b.Register(t.Context(), anyScope, false)
	want(t, "scope shared with a plugin of scope host", err, volume.ErrRefused, `plugin "ebs" has scope: host`)
}
