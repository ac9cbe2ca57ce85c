package cluster_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

// TestTasks claims a volume on a host that has only the node part of a driver. A host with a
// controller makes the calls. It is killed in the middle of a ControllerPublishVolume and started
// again: the claim still succeeds, and nothing remains attached. (I10, I11)
func TestTasks(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, san.Config{Attach: true, Stage: true})
	a := r.hosts[0]
	b := r.start("h2", san.Config{Attach: true, Stage: true, NodeOnly: true})
	r.share("db")

	path := claim(b, "db", "web", "--timeout", "20s")
	b.Must(write(b, path, "greeting", "from h2"))
	b.Volctl("volume", "detach", "db", "web")
	r.awaitGone()

	release := r.san.Hold("ControllerPublishVolume", "h1")
	claimed := b.StartVolctl("volume", "claim", "db", "--alloc", "web", "--timeout", "60s")
	r.awaitHeld("ControllerPublishVolume")
	a.Kill()
	a.Start("san")
	release()
	if got := <-claimed; got.Code != 0 {
		t.Fatalf("the claim ended with %d: %s", got.Code, got.Err)
	} else if text := read(b, strings.TrimSpace(got.Out), "greeting"); text != "from h2" {
		t.Errorf("the volume contains %q", text)
	}
	b.Volctl("volume", "detach", "db", "web")
	r.awaitGone()
}

// TestNoController claims a volume on a host that has only the node part of a driver, while no other
// host is alive. The claim ends with an error that names the missing controller.
func TestNoController(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, san.Config{Attach: true, Stage: true})
	a := r.hosts[0]
	b := r.start("h2", san.Config{Attach: true, Stage: true, NodeOnly: true})
	r.share("db")
	a.Kill()
	store := r.open()
	defer func() { _ = store.Close() }()
	if _, err := store.Do(t.Context(), shared.Txn{Then: []shared.Op{shared.Delete(shared.LiveKey("h1"))}}); err != nil {
		t.Fatal(err)
	}

	got := b.Try("volume", "claim", "db", "--alloc", "web", "--timeout", "5s")
	if words := "no live host runs a controller of driver san.example.com"; got.Code == 0 || !strings.Contains(got.Err, words) {
		t.Errorf("the claim ended with %d: %s", got.Code, got.Err)
	}
}

// awaitHeld waits until the SAN holds a call of a method, and returns the host that makes it.
func (r *rig) awaitHeld(method string) (node string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	for tick := time.NewTicker(5 * time.Millisecond); ctx.Err() == nil; <-tick.C {
		for _, c := range r.san.InFlight() {
			if c.Method == method && c.Held {
				return c.Node
			}
		}
	}
	r.t.Fatalf("no %s has reached the SAN", method)
	return ""
}

// TestExecutorLost loses the host that makes a ControllerPublishVolume for another host, and does not
// start it again. After its lease and one deadline of the call, the call comes back with an unknown outcome. The target is
// detached first, through a third host, and the claim then succeeds. (I10, I11)
func TestExecutorLost(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, san.Config{Attach: true, Stage: true})
	a := r.hosts[0]
	b := r.start("h2", san.Config{Attach: true, Stage: true, NodeOnly: true})
	r.start("h3", san.Config{Attach: true, Stage: true})
	r.share("db")

	release := r.san.Hold("ControllerPublishVolume", "h1")
	claimed := b.StartVolctl("volume", "claim", "db", "--alloc", "web", "--timeout", "60s")
	r.awaitHeld("ControllerPublishVolume")
	r.lose(a)
	got := <-claimed
	if got.Code != 0 {
		t.Fatalf("the claim ended with %d: %s", got.Code, got.Err)
	}
	release()

	calls := r.calls("h3")
	if len(calls) < 2 || calls[0] != "ControllerUnpublishVolume h2" || calls[len(calls)-1] != "ControllerPublishVolume h2" {
		t.Errorf("the third host has made the calls %q", calls)
	}
	b.Must(write(b, strings.TrimSpace(got.Out), "greeting", "from h2"))
	b.Volctl("volume", "detach", "db", "web")
	r.awaitGone()
}

// TestDeposed loses a host in the middle of a ControllerPublishVolume, and then the host that cleans up
// after it in the middle of its ControllerUnpublishVolume. A third host ends the call: nothing is
// attached, no call remains, and the lost host keeps its hold until it returns. (I10, I11)
func TestDeposed(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 3, san.Config{Attach: true, Stage: true})
	a := r.hosts[0]
	r.share("db")

	attach := r.san.Hold("ControllerPublishVolume", "h1")
	a.StartVolctl("volume", "claim", "db", "--alloc", "web", "--timeout", "60s")
	r.awaitHeld("ControllerPublishVolume")
	r.lose(a)
	attach()
	detach := r.san.Hold("ControllerUnpublishVolume", "")
	first := r.awaitHeld("ControllerUnpublishVolume")
	r.lose(r.host(first))
	detach()

	r.hosts[2].Await("the call of the lost hosts to end", func() bool { return r.value(shared.CallKey("db")) == "" })
	if n := len(r.san.Attachments()); n != 0 {
		t.Errorf("%d attachments remain", n)
	}
	second := map[string]string{"h2": "h3", "h3": "h2"}[first]
	if calls := r.calls(second); len(calls) != 1 || calls[0] != "ControllerUnpublishVolume h1" {
		t.Errorf("host %s has made the calls %q", second, calls)
	}
	if hold := r.value(shared.HoldKey("h1", "db")); !strings.Contains(hold, `"attachment":"unknown"`) {
		t.Errorf("the hold of the lost host is %q", hold)
	}

	a.Start("san")
	a.Await("the claim of the lost host", func() bool { return len(r.san.Attachments()) == 1 })
	a.Volctl("volume", "detach", "db", "web")
	r.awaitGone()
}

// TestPublished attaches a volume to a host that has no hold, and detaches another volume from the host
// that holds it, both without the agents. When a host arrives, the elected host compares the driver's
// list with the holds. The extra attachment ends, and the missing one is made again, after the host has
// unstaged its dead mount. (I4)
func TestPublished(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, listing)
	r.correctPublished()
}

// TestPublishedElsewhere does the same while the elected host has no controller. It asks a host that has
// one. (I4)
func TestPublishedElsewhere(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nodeOnlyOf(listing))
	elected := r.hosts[0]
	elected.Await("the election", func() bool { return strings.Contains(r.value(shared.LeaderKey), `"node":"h1"`) })
	r.hosts = []*harness.Host{r.start("h4", listing), r.start("h2", listing)}
	r.correctPublished()
	if leader := r.value(shared.LeaderKey); !strings.Contains(leader, `"node":"h1"`) {
		t.Errorf("another host has been elected meanwhile: %s", leader)
	}
}

// listing is a driver that lists the nodes to which a volume is attached.
var listing = san.Config{Attach: true, Stage: true, PublishedNodes: true}

// correctPublished makes an extra and a missing attachment on the first two hosts, and waits until they are
// corrected.
func (r *rig) correctPublished() {
	r.t.Helper()
	t, a, b := r.t, r.hosts[0], r.hosts[1]
	r.share("extra")
	r.share("missing")
	claim(a, "extra", "web")
	a.Volctl("volume", "detach", "extra", "web")
	claim(a, "missing", "web")

	r.direct(b, func(c csi.ControllerClient) {
		one := &csi.VolumeCapability{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		}
		_, err := c.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{VolumeId: "disk-extra", NodeId: "h2", VolumeCapability: one})
		b.Must(err)
		_, err = c.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: "disk-missing", NodeId: nameOf(a)})
		b.Must(err)
	})

	r.start("h3", listing)
	attached := func() string {
		var all []string
		for _, at := range r.san.Attachments() {
			all = append(all, at.Volume+" "+at.Node)
		}
		return strings.Join(all, ", ")
	}
	a.Await("the attachments to be corrected", func() bool { return attached() == "disk-missing "+nameOf(a) })
	a.Await("the volume to be usable again", func() bool { return write(a, claim(a, "missing", "web"), "f", "x") == nil })
	a.Volctl("volume", "detach", "missing", "web")
	r.awaitGone()
}

// TestOneCaller lets two hosts, and a third one through their controllers, claim and detach one volume
// at the same time. The SAN counts a violation if two hosts have a controller call for the volume in
// flight. (I11)
func TestOneCaller(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, san.Config{Attach: true, Stage: true})
	r.hosts = append(r.hosts, r.start("h3", san.Config{Attach: true, Stage: true, NodeOnly: true}))
	r.share("db")
	defer r.san.Delay("ControllerPublishVolume", "", 30*time.Millisecond)()
	defer r.san.Delay("ControllerUnpublishVolume", "", 30*time.Millisecond)()

	var wait sync.WaitGroup
	for _, h := range r.hosts {
		wait.Go(func() {
			for range 2 {
				if got := h.Try("volume", "claim", "db", "--alloc", "web", "--timeout", "60s"); got.Code != 0 {
					t.Errorf("the claim ended with %d: %s", got.Code, got.Err)
				}
				if got := h.Try("volume", "detach", "db", "web"); got.Code != 0 {
					t.Errorf("the detach ended with %d: %s", got.Code, got.Err)
				}
			}
		})
	}
	wait.Wait()
	r.awaitGone()
	if len(r.calls("h1")) == 0 || len(r.calls("h2")) == 0 || len(r.calls("h3")) != 0 {
		t.Errorf("the hosts have made %d, %d and %d controller calls", len(r.calls("h1")), len(r.calls("h2")), len(r.calls("h3")))
	}
}

// TestNodeOnly moves a volume of a driver without a controller between two hosts. No host makes a
// controller call.
func TestNodeOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, san.Config{NodeOnly: true, Stage: true})
	r.share("db")
	for _, h := range r.hosts {
		h.Must(write(h, claim(h, "db", "web", "--timeout", "20s"), "f", "x"))
		h.Volctl("volume", "detach", "db", "web")
	}
	for _, e := range r.san.Events() {
		if strings.HasPrefix(e.Method, "Controller") {
			t.Errorf("a host has made a controller call: %s", e)
		}
	}
}

// TestLateController claims a volume on a host that has only the node part of a driver, before the host
// with the controller has described its plugins. The claim waits, and does not skip
// ControllerPublishVolume. While it waits, the host has no hold.
func TestLateController(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, san.Config{Attach: true, Stage: true})
	b := r.start("h2", san.Config{Attach: true, Stage: true, NodeOnly: true})
	r.share("db")
	r.lose(r.hosts[0])
	r.drop(shared.NodeInfoKey("h1"))

	got := b.Try("volume", "claim", "db", "--alloc", "web", "--timeout", "3s")
	if words := `host "h1" has not said yet whether it runs a controller`; got.Code == 0 || !strings.Contains(got.Err, words) {
		t.Errorf("the claim ended with %d: %s", got.Code, got.Err)
	}
	if hold := r.value(shared.HoldKey("h2", "db")); hold != "" {
		t.Errorf("the waiting host has the hold %q", hold)
	}

	r.hosts[0].Start("san")
	b.Volctl("volume", "claim", "db", "--alloc", "web2", "--timeout", "30s")
	if calls := r.calls("h1"); len(calls) == 0 || calls[len(calls)-1] != "ControllerPublishVolume h2" {
		t.Errorf("the host with the controller has made the calls %q", calls)
	}
}

// direct makes calls to the plugin of a host, without the agent.
func (r *rig) direct(h *harness.Host, calls func(csi.ControllerClient)) {
	r.t.Helper()
	socket := filepath.Join(h.Dir, "run", "plugins", "san", "csi.sock")
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	h.Must(err)
	calls(csi.NewControllerClient(conn))
	h.Must(conn.Close())
}

// lose kills the agent of a host, and ends its leases at once.
func (r *rig) lose(h *harness.Host) {
	r.t.Helper()
	h.Kill()
	name := nameOf(h)
	r.drop(shared.LiveKey(name))
	if strings.Contains(r.value(shared.LeaderKey), `"node":"`+name+`"`) {
		r.drop(shared.LeaderKey)
	}
}

// nameOf returns the name of a host in the cluster.
func nameOf(h *harness.Host) string { return h.MoreArgs[slices.Index(h.MoreArgs, "--node-id")+1] }

// host returns the host with a name.
func (r *rig) host(name string) *harness.Host {
	r.t.Helper()
	i := slices.IndexFunc(r.hosts, func(h *harness.Host) bool { return nameOf(h) == name })
	if i < 0 {
		r.t.Fatalf("there is no host %q", name)
	}
	return r.hosts[i]
}

// drop deletes a key of the cluster.
func (r *rig) drop(key string) {
	r.t.Helper()
	store := r.open()
	defer func() { _ = store.Close() }()
	if _, err := store.Do(r.t.Context(), shared.Txn{Then: []shared.Op{shared.Delete(key)}}); err != nil {
		r.t.Fatal(err)
	}
}

// value returns the value of a key of the cluster, or an empty text.
func (r *rig) value(key string) string {
	r.t.Helper()
	for _, kv := range r.keys() {
		if kv.Key == key {
			return string(kv.Value)
		}
	}
	return ""
}

// calls returns the calls by which a host attaches and detaches, with their targets.
func (r *rig) calls(host string) (all []string) {
	for _, e := range r.san.Events() {
		attaches := e.Method == "ControllerPublishVolume" || e.Method == "ControllerUnpublishVolume"
		if e.Kind == san.KindCall && e.Node == host && attaches {
			all = append(all, e.Method+" "+e.Target)
		}
	}
	return all
}
