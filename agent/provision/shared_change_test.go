package provision_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/volagent/volagent/agent/cluster/memory"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestExpandShared expands a volume that two hosts hold. One host calls the controller, and each
// host gets the size for its own NodeExpandVolume.
func TestExpandShared(t *testing.T) {
	t.Parallel()
	s := newSite(t, "a", "b", "c")
	a, b, c := s.nodes["a"], s.nodes["b"], s.nodes["c"]
	must(t)(a.Create(t.Context(), sharedSpec(), false))
	a.use()
	b.use()
	s.made()

	if r, ch := must(t)(c.Expand(t.Context(), "data", 20, 0)); ch.Outcome != volume.Grown || r.Volume.Capacity != 20 {
		t.Errorf("%+v, %+v", ch, r.Volume)
	}
	equal(t, "calls", s.made(), []string{"c expand vol-1 20"})
	for _, n := range []*node{a, b} {
		s.await("the size on "+n.name, func() bool { r, _ := n.Volume("data"); return r.Volume.Expansion.Node == 20 })
	}
	if d, _ := s.definition("data"); d.Volume.Growth != (volume.Growth{Generation: 1, Size: 20}) || d.Volume.Expansion != (volume.Expansion{}) {
		t.Errorf("the definition is %+v", d.Volume)
	}
	if _, ch := must(t)(a.Expand(t.Context(), "data", 20, 0)); ch.Outcome != volume.Unchanged {
		t.Errorf("again: %+v", ch)
	}
	equal(t, "calls of the repetition", s.made(), []string(nil))

	s.fails[call.ControllerExpand] = rejected
	_, _, err := b.Expand(t.Context(), "data", 30, 0)
	want(t, "refused", err, volume.ErrInvalid, "refuses the request")
	s.fails[call.ControllerExpand] = lost
	_, _, err = b.Expand(t.Context(), "data", 40, 0)
	want(t, "unknown", err, volume.ErrTimeout, "it is unknown whether", "repeat the command")
	if d, _ := s.definition("data"); d.Volume.Expansion.Want != 40 {
		t.Errorf("the intent is %+v", d.Volume.Expansion)
	}
	s.await("the end of the call", func() bool { return len(s.keys("calls/")) == 0 })
	if _, ch := must(t)(c.WithdrawExpansion(t.Context(), "data")); ch.Outcome != volume.GivenUp {
		t.Errorf("withdrawn: %+v", ch)
	}
}

// TestExpandSharedTwice expands a volume on two hosts at the same time. The other host expands it
// between the decision and the announcement of the second host, and is still in its call, or has
// ended it. In both cases the second host makes no call.
func TestExpandSharedTwice(t *testing.T) {
	t.Parallel()
	for _, ended := range []bool{false, true} {
		t.Run(fmt.Sprintf("ended %t", ended), func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "a", "b")
			a, b := s.nodes["a"], s.nodes["b"]
			must(t)(a.Create(t.Context(), sharedSpec(), false))
			s.made()

			called, proceed, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			s.during = func(string, call.Method) {
				close(called)
				<-proceed
			}
			let := sync.OnceFunc(func() { close(proceed) })
			defer let()
			expand := sync.OnceFunc(func() {
				go func() {
					_, _, err := a.Expand(context.Background(), "data", 20, 0)
					done <- err
				}()
				<-called
				if ended {
					let()
					done <- <-done
				}
			})
			begun := 0
			b.store.SetFaults(func(txn shared.Txn) memory.Fault {
				if slices.ContainsFunc(txn.Then, func(o shared.Op) bool { return o.Kind == shared.OpPut && o.Key == shared.CallKey("data") }) {
					begun++
					expand()
				}
				return memory.None
			})

			r, ch, err := b.Expand(t.Context(), "data", 20, 0)
			if ended && (err != nil || r.Volume.Capacity != 20) {
				t.Errorf("the size is %d, %v, %v", r.Volume.Capacity, ch, err)
			}
			if !ended {
				want(t, "beside the call", err, volume.ErrRefused, `host "a" is calling ControllerExpandVolume for volume "data" since`)
			}
			let()
			if err := <-done; err != nil {
				t.Errorf("the expansion of the first host: %v", err)
			}
			if begun != 1 {
				t.Errorf("the second host has announced a call %d times, and not once", begun)
			}
			if r, _ := must(t)(b.Expand(t.Context(), "data", 20, 0)); r.Volume.Capacity != 20 {
				t.Errorf("at last, the size is %d", r.Volume.Capacity)
			}
			equal(t, "calls", s.made(), []string{"a expand vol-1 20"})
			equal(t, "announced calls", s.keys("calls/"), []string(nil))
		})
	}
}

func TestModifyShared(t *testing.T) {
	t.Parallel()
	s := newSite(t, "a", "b")
	a, b := s.nodes["a"], s.nodes["b"]
	must(t)(a.Register(t.Context(), sharedDisk(), false))
	iops := func(v string) map[string]string { return map[string]string{"iops": v} }
	if _, ch := must(t)(a.Modify(t.Context(), "data", iops("7"))); ch.Outcome != volume.Modified {
		t.Errorf("%+v", ch)
	}
	if _, ch := must(t)(b.Modify(t.Context(), "data", iops("7"))); ch.Outcome != volume.Unchanged {
		t.Errorf("on the other host: %+v", ch)
	}
	s.fails[call.ControllerModify] = rejected
	_, _, err := b.Modify(t.Context(), "data", iops("8"))
	want(t, "refused", err, volume.ErrInvalid, "refuses the request")
	if d, _ := s.definition("data"); len(d.Volume.Modifying) > 0 || d.Volume.Mutable["iops"] != "7" {
		t.Errorf("after a refusal: %+v", d.Volume)
	}
	s.fails[call.ControllerModify] = lost
	_, _, err = b.Modify(t.Context(), "data", iops("9"))
	want(t, "unknown", err, volume.ErrTimeout, "it is unknown whether", "repeat the modify")
	if d, _ := s.definition("data"); d.Volume.Modifying["iops"] != "9" {
		t.Errorf("the intent is %+v", d.Volume.Modifying)
	}
	s.await("the end of the call", func() bool { return len(s.keys("calls/")) == 0 })
	must(t)(a.Modify(t.Context(), "data", iops("9")))
	if d, _ := s.definition("data"); len(d.Volume.Modifying) > 0 || d.Volume.Mutable["iops"] != "9" {
		t.Errorf("after the repetition: %+v", d.Volume)
	}
	equal(t, "calls", s.made(), []string{"a modify vol-9 map[iops:7]", "b modify vol-9 map[iops:8]", "b modify vol-9 map[iops:9]", "a modify vol-9 map[iops:9]"})
}

func TestDeleteShared(t *testing.T) {
	t.Parallel()
	s := newSite(t, "a", "b")
	a, b := s.nodes["a"], s.nodes["b"]
	must(t)(a.Create(t.Context(), sharedSpec(), false))
	s.made()
	a.use()
	want(t, "in use", b.Delete(t.Context(), "data", ""), volume.ErrRefused, "held by host a in mode multi-node-multi-writer")
	a.free()

	s.fails[call.DeleteVolume] = made(volume.CodeFailedPrecondition, volume.RetryChange, true)
	want(t, "refused", b.Delete(t.Context(), "data", ""), volume.ErrRefused, "refuses the request")
	if d, _ := s.definition("data"); d.Deleting || d.Volume.Provision != volume.Provisioned {
		t.Errorf("after a refusal: %+v", d)
	}
	s.fails[call.DeleteVolume] = lost
	want(t, "unknown", b.Delete(t.Context(), "data", ""), volume.ErrTimeout, "it is unknown whether the data", "repeat the delete on any host")
	if d, _ := s.definition("data"); !d.Deleting {
		t.Errorf("the mark of the delete is missing: %+v", d)
	}
	s.await("the end of the call", func() bool { return len(s.keys("calls/")) == 0 })
	_, _, err := b.Register(t.Context(), sharedSpec(), false)
	want(t, "register", err, volume.ErrRefused, "deleting has not finished")
	_, _, err = b.Expand(t.Context(), "data", 50, 0)
	want(t, "expand", err, volume.ErrRefused, "deleting")
	_, _, err = b.Unshare(t.Context(), "data")
	want(t, "unshare", err, volume.ErrRefused, "deleting has not finished")
	if err := b.Delete(t.Context(), "data", ""); err != nil {
		t.Error(err)
	}
	equal(t, "calls", s.made(), []string{"b delete vol-1", "b delete vol-1", "b delete vol-1"})
	equal(t, "keys left", s.keys("volumes/", "external/", "calls/", "use/", "notices/"), []string(nil))

	must(t)(a.Register(t.Context(), sharedDisk(), false))
	want(t, "registered storage", b.Delete(t.Context(), "data", ""), volume.ErrRefused, "no host of the cluster created", "--confirm=data")
	if err := b.Delete(t.Context(), "data", "data"); err != nil {
		t.Error(err)
	}
	want(t, "gone", a.Delete(t.Context(), "data", ""), volume.ErrNotFound, `no volume "data"`)
}

// TestDeregisterShared deregisters a volume for all hosts, and by force only on this host.
func TestDeregisterShared(t *testing.T) {
	t.Parallel()
	s := newSite(t, "a", "b")
	a, b := s.nodes["a"], s.nodes["b"]
	must(t)(a.Register(t.Context(), sharedDisk(), false))
	a.use()
	_, err := b.Deregister(t.Context(), "data", false)
	want(t, "in use", err, volume.ErrRefused, "held by host a")
	_, err = b.Deregister(t.Context(), "data", true)
	want(t, "by force on another host", err, volume.ErrRefused, "held by host a")
	_, err = a.Service.Forget(t.Context(), "data")
	want(t, "with its leftovers", err, volume.ErrRefused, "cannot discard its leftovers without a proof")

	// The host forgets the volume without an answer of etcd, and keeps its hold.
	asked := 0
	a.store.SetFaults(func(shared.Txn) memory.Fault { asked++; return memory.Unreachable })
	r, _ := a.Volume("data")
	r, _ = volume.Detach(r, "web") // a live claim is never dropped
	a.put(r)
	left, err := a.Deregister(t.Context(), "data", true)
	if err != nil || !strings.Contains(strings.Join(left, "; "), "stays in the cluster; this host gives up its hold when the leftovers are undone") {
		t.Errorf("by force without etcd: %q, %v", left, err)
	}
	a.store.SetFaults(nil)
	if l := a.Leftovers(); len(l) != 1 || l[0].Node.Hold.Operation != "op-a" || l[0].Node.Hold.State != volume.Present {
		t.Errorf("the leftovers are %+v", l)
	}
	equal(t, "keys", s.keys("volumes/", "holds/"), []string{"holds/a/data", "volumes/data"})
	_, err = a.Service.Forget(t.Context(), "data")
	want(t, "the leftovers alone", err, volume.ErrRefused, "cannot discard its leftovers without a proof")

	a.free()
	if _, err := b.Deregister(t.Context(), "data", false); err != nil {
		t.Error(err)
	}
	equal(t, "keys left", s.keys("volumes/", "external/", "calls/", "use/"), []string(nil))
	_, err = b.Deregister(t.Context(), "data", false)
	want(t, "again", err, volume.ErrNotFound, `no volume "data"`)
}

// TestSharedOutage checks which operations need the cluster.
func TestSharedOutage(t *testing.T) {
	t.Parallel()
	s := newSite(t, "a")
	a := s.nodes["a"]
	must(t)(a.Register(t.Context(), sharedDisk(), false))
	a.store.SetFaults(func(shared.Txn) memory.Fault { return memory.Unreachable })
	_, _, err := a.Register(t.Context(), sharedDisk(), false)
	want(t, "register", err, volume.ErrPluginUnavailable, "is etcd up")
	want(t, "delete", a.Delete(t.Context(), "data", ""), volume.ErrPluginUnavailable, `cannot look for volume "data" in the cluster`)
	_, _, err = a.Share(t.Context(), "data", false)
	want(t, "share", err, volume.ErrPluginUnavailable, "is etcd up")
	own := existing()
	own.ID, own.ExternalID = "own", "vol-10"
	must(t)(a.Register(t.Context(), own, false)) // a volume of this host does not wait
	if err := a.Delete(t.Context(), "own", "own"); err != nil {
		t.Error(err)
	}
}
