package dockervol

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/service"
	"github.com/volagent/volagent/volmgr/bytesize"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// docker and podman are the runtimes, each with one process.
var (
	docker = Caller{Runtime: plugin.RuntimeDocker, Process: "dockerd"}
	podman = Caller{Runtime: plugin.RuntimePodman}
)

// world fakes everything that the service needs: the store, claims that are mounted at once, a
// plugin, the runtimes and the mount tables.
type world struct {
	t  *testing.T
	mu sync.Mutex

	volumes map[string]volume.Record
	cluster map[string]volume.Volume // the shared volumes of the cluster, by id
	fetchIs error                    // the error of each question to the cluster
	names   map[string]volume.RuntimeVolume
	storeIs error // the error that every change of the store returns

	mount     func(ctx context.Context) error // runs while a claim waits for its mount
	dropping  func()                          // runs before a claim is detached
	seq       uint64
	admitted  int
	dropped   []string
	using     []string
	usingIs   error
	asking    func() // runs before a runtime answers
	elsewhere []string
	elseIs    error
	deleted   []string
	remap     map[int][2]string // the host's uid and gid of root in the containers, by pid of the docker daemon
	events    []string
	clock     time.Time
	step      func() // runs at each point where the test may kill the agent
}

func newWorld(t *testing.T, ids ...string) (*world, *Service) {
	w := &world{t: t, volumes: map[string]volume.Record{}, names: map[string]volume.RuntimeVolume{}, clock: time.Unix(1e9, 0).UTC(), step: func() {}}
	for _, id := range ids {
		w.add(volume.Volume{ID: id, PluginID: "p", Reclaim: "retain"})
	}
	return w, &Service{
		Store: w, Claims: w, Volumes: w, Plugins: w, Containers: w, Mounts: w, Size: bytesize.ParseDocker,
		Remapped: func(pid int) (uid, gid string) { return w.remap[pid][0], w.remap[pid][1] },
		Patience: func(string) Patience { return Patience{Long: time.Minute, Short: time.Minute} },
		Events: func(evs ...volume.Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, e := range evs {
				w.events = append(w.events, string(e.Type))
			}
		},
		Fetch: func(_ context.Context, id string) error { return w.fetch(id) },
		Log:   hclog.NewNullLogger(), Now: func() time.Time { return w.clock },
	}
}

// next simulates a restart of the agent. It returns a new service in the same world.
func (w *world) next() *Service {
	_, s := newWorld(w.t)
	s.Store, s.Claims, s.Volumes, s.Plugins, s.Containers, s.Mounts = w, w, w, w, w, w
	s.Now = func() time.Time { return w.clock }
	return s
}

// fetch adds the record of a shared volume that the cluster has.
func (w *world) fetch(id string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v, ok := w.cluster[id]; ok && w.fetchIs == nil {
		w.add(v)
	}
	return w.fetchIs
}

func (w *world) add(v volume.Volume) {
	w.volumes[v.ID] = volume.Record{Volume: v, Claims: map[string]volume.Claim{}}
}

func (w *world) Volume(id string) (volume.Record, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, ok := w.volumes[id]
	r.Claims = maps.Clone(r.Claims)
	return r, ok
}

func (w *world) Volumes() []volume.Record {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Values(w.volumes))
}

func (w *world) RuntimeVolume(runtime, name string) (volume.RuntimeVolume, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v, ok := w.names[volume.RuntimeKey(runtime, name)]
	return v, ok
}

func (w *world) RuntimeVolumes() []volume.RuntimeVolume {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Values(w.names))
}

func (w *world) Update(_ context.Context, fn func(Tx) error) error {
	w.step()
	defer w.step()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.storeIs != nil {
		return w.storeIs
	}
	tx := &worldTx{w, maps.Clone(w.names)}
	if err := fn(tx); err != nil {
		return err
	}
	w.names = tx.names
	return nil
}

type worldTx struct {
	*world
	names map[string]volume.RuntimeVolume
}

func (tx *worldTx) RuntimeVolume(runtime, name string) (volume.RuntimeVolume, bool) {
	v, ok := tx.names[volume.RuntimeKey(runtime, name)]
	return v, ok
}

func (tx *worldTx) RuntimeVolumes() []volume.RuntimeVolume {
	return slices.Collect(maps.Values(tx.names))
}

func (tx *worldTx) PutRuntimeVolume(v volume.RuntimeVolume) {
	if err := v.Check(); err != nil {
		tx.t.Errorf("stored: %v", err)
	}
	tx.names[v.Key()] = v
}

func (tx *worldTx) DeleteRuntimeVolume(runtime, name string) {
	delete(tx.names, volume.RuntimeKey(runtime, name))
}

// Claim admits a claim. The claim is mounted when the function mount returns without an error.
func (w *world) Claim(ctx context.Context, id string, ask volume.Request, _ time.Duration) (volume.Record, volume.Claim, error) {
	w.step()
	w.mu.Lock()
	r, ok := w.volumes[id]
	c, had := r.Claims[ask.Alloc]
	switch {
	case !ok:
		w.mu.Unlock()
		return r, c, volume.Errorf(volume.ErrNotFound, "no volume %q", id)
	case had && c.Owner != ask.Owner:
		w.mu.Unlock()
		return r, c, volume.Errorf(volume.ErrRefused, "%q already has a claim", ask.Alloc)
	case !had:
		w.seq++
		w.admitted++
		c = volume.Claim{Alloc: ask.Alloc, Seq: w.seq, Wanted: true, State: volume.Pending, Terms: volume.Terms{Owner: ask.Owner, ReadOnly: ask.ReadOnly}, Target: "/t/" + ask.Alloc + "/" + id}
		r.Claims[ask.Alloc] = c
	}
	mount := w.mount
	w.mu.Unlock()
	w.step()
	if mount != nil {
		if err := mount(ctx); err != nil {
			return r, c, err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c.State, c.Mount = volume.Mounted, &volume.MountIdentity{Boot: "b", Device: "1:1", Root: "/"}
	r.Claims[ask.Alloc] = c
	return r, c, nil
}

// Drop detaches a claim and removes it at once.
func (w *world) Drop(_ context.Context, id string, c volume.Claim) error {
	w.step()
	defer w.step()
	if w.dropping != nil {
		w.dropping()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if now, ok := w.volumes[id].Claims[c.Alloc]; ok && now.Seq == c.Seq {
		delete(w.volumes[id].Claims, c.Alloc)
		w.dropped = append(w.dropped, id+" "+c.Alloc)
	}
	return nil
}

func (w *world) Freed(context.Context, string, volume.Claim) error { return nil }

func (w *world) Create(_ context.Context, _ service.Caller, spec api.VolumeSpec, _ bool, _ time.Duration) (api.VolumeResult, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if spec.PluginID == "none" {
		return api.VolumeResult{}, volume.Errorf(volume.ErrNotFound, "no plugin %q", spec.PluginID).WithHint("volctl plugin list")
	}
	w.add(service.Volume(spec))
	return api.VolumeResult{Outcome: volume.Created}, nil
}

func (w *world) Delete(_ context.Context, _ service.Caller, id, confirm string) (api.Done, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if id != confirm {
		return api.Done{}, errors.New("not confirmed")
	}
	if len(w.volumes[id].Claims) > 0 {
		return api.Done{}, volume.Errorf(volume.ErrRefused, "volume %q is claimed", id)
	}
	delete(w.volumes, id)
	w.deleted = append(w.deleted, id)
	return api.Done{}, nil
}

func (w *world) View(string) plugin.View { return plugin.View{Known: true, State: "ready"} }

func (w *world) Using(context.Context, string, string) ([]string, error) {
	if w.asking != nil {
		w.asking()
	}
	return w.using, w.usingIs
}

func (w *world) Elsewhere(_ context.Context, id volume.MountIdentity, paths []string) ([]string, error) {
	if id.Boot == "" || len(paths) == 0 {
		w.t.Errorf("asked for %+v at %q", id, paths)
	}
	return w.elsewhere, w.elseIs
}

// claims returns the claims in the form "volume alloc", sorted.
func (w *world) claims() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := []string{}
	for id, r := range w.volumes {
		for alloc := range r.Claims {
			out = append(out, id+" "+alloc)
		}
	}
	slices.Sort(out)
	return out
}

// refs returns the ids of the references to one of docker's volumes.
func (w *world) refs(name string) (ids []string) {
	v, _ := w.RuntimeVolume("docker", name)
	for _, r := range v.Refs {
		ids = append(ids, r.ID)
	}
	return ids
}

func (w *world) want(what string, got []string, want ...string) {
	w.t.Helper()
	if !slices.Equal(got, want) {
		w.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// says checks that the text that a runtime shows for err contains all the given words.
func says(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Error("it was not refused")
		return
	}
	for _, part := range want {
		if got := words(err); !strings.Contains(got, part) || strings.Contains(got, "\n") {
			t.Errorf("got %q, want %q in it", got, part)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mounted mounts a volume for docker. The test fails if that is impossible.
func (w *world) mounted(s *Service, name, id string) string {
	w.t.Helper()
	path, err := s.Mount(w.t.Context(), docker, name, id)
	must(w.t, err)
	return path
}
