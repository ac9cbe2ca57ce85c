package provision_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/cluster/memory"
	"github.com/volagent/volagent/agent/hold"
	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// site is a cluster in memory whose hosts use one fake storage system.
type site struct {
	t      *testing.T
	server *memory.Server
	raw    *memory.Store // of the test itself
	nodes  map[string]*node

	mu    sync.Mutex
	calls []string          // all calls to the storage, with the host
	disks map[string]string // external ids, by name
	fails map[call.Method]error
	// during is called within each call to the storage.
	during func(host string, m call.Method)
}

// node is one host of a site. Unlike a world alone, it is safe for concurrent use.
type node struct {
	*world
	*provision.Service
	site    *site
	name    string
	store   *memory.Store
	holds   *hold.Service
	records sync.Mutex
	member  shared.Membership
}

// newSite starts a cluster with hosts.
func newSite(t *testing.T, names ...string) *site {
	t.Helper()
	s := &site{t: t, server: memory.New(), nodes: map[string]*node{}, disks: map[string]string{}, fails: map[call.Method]error{}}
	s.raw = s.server.Open("volagent")
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	for _, name := range names {
		n := &node{world: newWorld(), site: s, name: name, store: s.server.Open("volagent")}
		n.view.ControllerTimeout = 20 * time.Millisecond
		caps := &n.view.Info.Caps
		caps.Expand, caps.NodeExpand, caps.Modify, caps.Attach, caps.Stage = true, true, true, true, true
		n.holds = hold.New(hold.Options{
			Info: func() shared.NodeInfo { return shared.NodeInfo{} }, AwaitPlugin: func(context.Context, string) error { return nil },
			Store: n.store, Endpoints: func() string { return "memory" }, Node: name, Boot: "boot", Records: n, Wake: func(string) {}, Reachable: func() {},
			StagingPath: func(_, id string) string { return "/s/" + id }, Uses: func(driver, external string) string { return n.Uses(driver, external) },
			Concerned: func(string) bool { return false },
			Status:    func() shared.Status { return shared.Status{} }, Draining: func() bool { return false }, Admitted: func(time.Duration) {},
			Events: func(...volume.Event) {}, Log: hclog.NewNullLogger(),
		})
		o := n.options()
		o.Store, o.Plugins, o.Cluster, o.Node = n, n, n.holds.Definitions(), name
		o.Allowed = func(call.SecretRef) error { return nil }
		n.Service = provision.New(o)
		s.nodes[name] = n
		running.Go(func() { n.holds.Run(ctx) })
		s.await("the registration of "+name, func() bool { return n.holds.Cluster(volume.Record{}).Away == "" })
	}
	return s
}

// await waits for a condition.
func (s *site) await(what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("waited too long for %s", what)
		}
	}
}

// keys returns the keys in the cluster that begin with one of the given words.
func (s *site) keys(words ...string) (all []string) {
	s.t.Helper()
	page, err := s.raw.Range(s.t.Context(), shared.Span{Key: "a", End: "{"}, 0, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, kv := range page.KVs {
		if slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(kv.Key, w) }) {
			all = append(all, kv.Key)
		}
	}
	return all
}

// definition returns the definition of a volume in the cluster.
func (s *site) definition(id string) (shared.Definition, bool) {
	s.t.Helper()
	page, err := s.raw.Range(s.t.Context(), shared.Span{Key: shared.VolumeKey(id)}, 0, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	if len(page.KVs) == 0 {
		return shared.Definition{}, false
	}
	e, err := shared.Decode[shared.Definition](page.KVs[0])
	if err != nil {
		s.t.Fatal(err)
	}
	return e.Value, true
}

// do executes a transaction of the test itself.
func (s *site) do(ops ...shared.Op) {
	s.t.Helper()
	if _, err := s.raw.Do(context.Background(), shared.Txn{Then: ops}); err != nil {
		s.t.Fatal(err)
	}
}

// called records a call to the storage, and returns the error that the test has ordered.
func (n *node) called(m call.Method, words string) error {
	s := n.site
	s.mu.Lock()
	s.calls = append(s.calls, n.name+" "+words)
	err, during := s.fails[m], s.during
	delete(s.fails, m)
	s.mu.Unlock()
	if during != nil {
		during(n.name, m)
	}
	return err
}

// made returns the calls to the storage since the last time.
func (s *site) made() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.calls
	s.calls = nil
	return all
}

// storageHandlers answer the calls to the storage of the site.
func (n *node) storageHandlers() call.Handlers {
	h, s := call.Handlers{}, n.site
	call.HandleDo(h, func(_ context.Context, r call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
		s.mu.Lock()
		if s.disks[r.Name] == "" {
			s.disks[r.Name] = fmt.Sprintf("vol-%d", len(s.disks)+1)
		}
		id := s.disks[r.Name]
		s.mu.Unlock()
		return call.CreateVolumeResult{ExternalID: id, Capacity: 12}, n.called(call.CreateVolume, "create "+r.Name)
	})
	call.HandleRun(h, func(_ context.Context, r call.DeleteVolumeRequest) error {
		return n.called(call.DeleteVolume, "delete "+r.ExternalID)
	})
	call.HandleRun(h, func(_ context.Context, r call.ModifyRequest) error {
		return n.called(call.ControllerModify, fmt.Sprintf("modify %s %v", r.ExternalID, r.Mutable))
	})
	call.HandleDo(h, func(_ context.Context, r call.ExpandRequest) (call.ExpandResult, error) {
		return call.ExpandResult{Capacity: r.CapacityMin, NodeRequired: true}, n.called(call.ControllerExpand, fmt.Sprintf("expand %s %d", r.ExternalID, r.CapacityMin))
	})
	call.HandleRun(h, func(context.Context, call.ValidateRequest) error { return nil })
	return h
}

func (n *node) Provisioner(string) (call.Caller, error) { return n.storageHandlers(), nil }
func (n *node) Reporter(string) (call.Caller, error)    { return n.storageHandlers(), nil }

// Volume implements provision.Store and hold.Records.
func (n *node) Volume(id string) (volume.Record, bool) {
	n.records.Lock()
	defer n.records.Unlock()
	return n.world.Volume(id)
}

// Volumes implements hold.Records.
func (n *node) Volumes() []volume.Record {
	n.records.Lock()
	defer n.records.Unlock()
	return slices.Collect(maps.Values(n.volumes))
}

// Update implements provision.Store.
func (n *node) Update(ctx context.Context, fn func(provision.Tx) error) error {
	n.records.Lock()
	defer n.records.Unlock()
	return n.world.Update(ctx, fn)
}

// Membership implements hold.Records.
func (n *node) Membership() shared.Membership {
	n.records.Lock()
	defer n.records.Unlock()
	return n.member
}

// PutMembership implements hold.Records.
func (n *node) PutMembership(_ context.Context, m shared.Membership) error {
	n.records.Lock()
	defer n.records.Unlock()
	n.member = m
	return nil
}

// ChangeShared implements hold.Records.
func (n *node) ChangeShared(_ context.Context, key string, fn func(volume.Record, bool) (volume.Record, bool)) error {
	n.records.Lock()
	defer n.records.Unlock()
	r, ok := n.volumes[key]
	if now, changed := fn(r, ok); changed {
		n.volumes[key] = now
	}
	return nil
}

// Leftovers implements hold.Records.
func (n *node) Leftovers() []volume.Record {
	n.records.Lock()
	defer n.records.Unlock()
	return slices.Collect(maps.Values(n.leftovers))
}

// ForgetIdle implements hold.Records.
func (n *node) ForgetIdle(_ context.Context, id string) error {
	n.records.Lock()
	defer n.records.Unlock()
	if r, ok := n.volumes[id]; ok && r.Idle() {
		delete(n.volumes, id)
	}
	return nil
}

// sharedSpec returns the file of a new shared volume, and sharedDisk the file of one with storage.
func sharedSpec() volume.Volume {
	v := spec()
	v.Shared = true
	v.Capabilities = []call.Capability{{Access: call.MultiNodeMultiWriter, Attachment: call.FileSystem}}
	return v
}

func sharedDisk() volume.Volume {
	v := sharedSpec()
	v.ExternalID = "vol-9"
	return v
}

// use makes a host a user of the volume "data", as a claim does.
func (n *node) use() {
	n.site.t.Helper()
	if err := n.holds.Fetch(context.Background(), "data"); err != nil {
		n.site.t.Fatal(err)
	}
	h := shared.Hold{Access: call.MultiNodeMultiWriter, Operation: "op-" + n.name, Attachment: shared.Attached, NodeID: n.name}
	n.site.do(
		shared.Put(shared.HoldKey(n.name, "data"), shared.Entry[shared.Hold]{}.Encode(h)), shared.Put(shared.UserKey("data", n.name), []byte("{}")),
		shared.Put(shared.UseKey("data"), shared.Entry[shared.Use]{}.Encode(shared.Use{Access: h.Access, Generation: 9})),
	)
	n.records.Lock()
	defer n.records.Unlock()
	info := n.view.Info
	info.HasNode = true
	r, err := volume.Admit(n.volumes["data"], volume.Request{Alloc: "web", StagingPath: "/s", Target: "/t", Operation: h.Operation}, info, time.Now())
	if err != nil {
		n.site.t.Fatal(err)
	}
	r.Node.Hold.State, r.Node.Hold.Token, r.Node.Hold.Confirmed = volume.Present, volume.Token{Epoch: 1, Revision: n.site.server.Revision()}, true
	r.Node.Attached = volume.Present
	n.volumes["data"] = r
}

// free ends the use of the volume "data" by a host.
func (n *node) free() {
	n.records.Lock()
	delete(n.volumes, "data")
	clear(n.leftovers)
	n.records.Unlock()
	n.site.do(shared.Delete(shared.HoldKey(n.name, "data")), shared.Delete(shared.UserKey("data", n.name)), shared.Put(shared.UseKey("data"), []byte(`{"generation":12}`)))
}
