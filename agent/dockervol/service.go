// Package dockervol serves volumes to docker and podman: their volume plugin API, by
// which a volume is `-v NAME:DIR` for a container.
//
//	service.go  what it needs; volumes as the runtimes see them
//	options.go  what -o of "docker volume create" may say
//	create.go   a name of a runtime's for a volume
//	remap.go    who root in docker's containers is on the host
//	mount.go    references to it, and the claim that they share
//	remove.go   the name is given up
//	release.go  references that are given back, and the claims that go with them
//	doubt.go    references that no container explains, and why their claims stay
//	reap.go     references whose containers ended without an Unmount
//	touch.go    when they were last heard of
//	server.go   HTTP on the socket
//	peer.go     which runtime is calling
//
// A runtime holds one claim on a volume, whatever the number of its containers: docker
// has an id for each of their mounts, podman one for all containers. The ids are
// references, and they are stored with the number of Mounts that were not given back:
//
//	Mount    the count goes up, then the claim is taken. A Mount that fails is withdrawn.
//	Unmount  the count goes down. At 0 the reference goes, with the last one the claim.
//
// An agent that is killed makes counts wrong, since docker repeats the call that was cut
// off. After a repeated Mount the count is too high: the reaper drops the reference once
// no container uses the volume. After a repeated Unmount it is too low: so a claim whose
// mount shows in another mount namespace stays, marked as returned, until it no longer
// does.
//
// A claim without a reference is to be released. A claim is taken and released under the
// name's lock, so that a Mount which comes between the last Unmount and the release wins.
package dockervol

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/volume"
)

// Tx is one change of the store; all of it is on disk, or none.
type Tx interface {
	RuntimeVolume(runtime, name string) (volume.RuntimeVolume, bool)
	RuntimeVolumes() []volume.RuntimeVolume
	PutRuntimeVolume(volume.RuntimeVolume)
	DeleteRuntimeVolume(runtime, name string)
}

// Store holds the records. Reads are from memory.
type Store interface {
	Volume(id string) (volume.Record, bool)
	Volumes() []volume.Record
	RuntimeVolume(runtime, name string) (volume.RuntimeVolume, bool)
	RuntimeVolumes() []volume.RuntimeVolume
	Update(ctx context.Context, fn func(Tx) error) error
}

// Claims admits and releases claims.
type Claims interface {
	Claim(ctx context.Context, id string, ask volume.Request, wait time.Duration) (volume.Record, volume.Claim, error)
	// Drop has the intent to release a claim on disk; Freed waits until it is undone.
	Drop(ctx context.Context, id string, c volume.Claim) error
	Freed(ctx context.Context, id string, c volume.Claim) error
}

// Volumes makes and destroys storage.
type Volumes interface {
	CreateWithin(ctx context.Context, spec volume.Volume, dry bool, wait time.Duration) (volume.Record, volume.Change, error)
	Delete(ctx context.Context, id, confirm string) error
}

// Plugins tells how a plugin is, from memory.
type Plugins interface {
	View(pluginID string) volume.PluginView
}

// Containers is a runtime's own word.
type Containers interface {
	// Using names the containers that use a volume of the runtime's, or may be about to.
	// An error is no answer.
	Using(ctx context.Context, runtime, name string) ([]string, error)
}

// Mounts tells who else has a mount.
type Mounts interface {
	// Elsewhere names, in words, who has a mount outside the host's own namespace, other
	// than as a copy of the host's at one of the paths. An error is no answer.
	Elsewhere(ctx context.Context, id volume.MountIdentity, paths []string) ([]string, error)
}

// Patience is how long a runtime waits for an answer, less what it takes to reach it.
type Patience struct {
	Long  time.Duration // Create and Mount
	Short time.Duration // Unmount and Remove
}

// Service answers the runtimes. Its fields are set before the first call.
type Service struct {
	Store      Store
	Claims     Claims
	Volumes    Volumes
	Plugins    Plugins
	Containers Containers
	Mounts     Mounts
	// Size reads a size in the words of a volume file, in bytes.
	Size func(string) (int64, error)
	// Remapped returns the ids of the host that root has in the containers of a process of
	// docker's; empty if that cannot be told, or if they are the host's own.
	Remapped func(pid int) (uid, gid string)
	Patience func(runtime string) Patience
	Events   func(...volume.Event)
	Log      hclog.Logger
	// Now is the clock; nil is the host's.
	Now func() time.Time

	locks    locks
	mu       sync.Mutex
	mounting map[string]int // calls of Mount in hand, by runtime
	turn     uint64         // of the last call of Mount
	touched  map[string]map[string]touch
	suspects map[string]int // of reap.go
	told     reasons
	doubts   []Doubt // of the last look
}

func (s *Service) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now().UTC()
}

func (s *Service) say(v volume.RuntimeVolume, typ, message string) {
	s.Events(volume.Event{Type: typ, Volume: v.VolumeID, Message: message})
}

// View is a volume as a runtime sees it.
type View struct {
	Name       string
	Mountpoint string `json:",omitempty"`
	CreatedAt  string `json:",omitempty"`
	Status     map[string]any
}

// Get returns a volume that the runtime created; no other one, since it would be taken
// for the volume of that name of whoever asks. It asks no plugin.
func (s *Service) Get(runtime, name string) (View, error) {
	v, ok := s.Store.RuntimeVolume(runtime, name)
	if !ok {
		return View{}, volume.Errorf(volume.ErrNotFound, "%s has no volume %q here", runtime, name).
			WithHint("%s", volume.Command("%s volume create -d csi %s", runtime, name))
	}
	return s.view(v), nil
}

// List returns all volumes that the runtime created, by name.
func (s *Service) List(runtime string) []View {
	views := []View{}
	for _, v := range s.Store.RuntimeVolumes() {
		if v.Runtime == runtime {
			views = append(views, s.view(v))
		}
	}
	slices.SortFunc(views, func(a, b View) int { return strings.Compare(a.Name, b.Name) })
	return views
}

// Path is where a volume is mounted; empty while it is not.
func (s *Service) Path(runtime, name string) (string, error) {
	v, err := s.Get(runtime, name)
	return v.Mountpoint, err
}

// view words what is known, from memory. A volume that was deregistered is shown all the
// same: docker gives up unmounting what it cannot get.
func (s *Service) view(v volume.RuntimeVolume) View {
	view := View{Name: v.Name, CreatedAt: v.CreatedAt.UTC().Format(time.RFC3339), Status: map[string]any{
		"volume": v.VolumeID, "references": len(v.Refs), "state": "free",
	}}
	r, ok := s.Store.Volume(v.VolumeID)
	if !ok {
		view.Status["state"] = "deregistered"
		view.Status["note"] = fmt.Sprintf("volagent knows no volume %q any more; %s", v.VolumeID, volume.Command("%s volume rm %s", v.Runtime, v.Name))
		return view
	}
	view.Status["plugin"], view.Status["plugin_state"] = r.Volume.PluginID, s.Plugins.View(r.Volume.PluginID).State
	for _, c := range r.Ordered() {
		if c.Owner != v.Owner() {
			continue
		}
		view.Status["state"] = string(c.State)
		if c.State == volume.Taken {
			view.Status["state"], view.Mountpoint = "mounted", c.Path()
		}
	}
	return view
}

// change replaces the references of a name's volume by those that fn returns. The name's
// lock is held.
func (s *Service) change(ctx context.Context, runtime, name string, fn func(volume.RuntimeVolume) volume.RuntimeVolume) (now volume.RuntimeVolume, ok bool, err error) {
	err = s.Store.Update(ctx, func(tx Tx) error {
		if now, ok = tx.RuntimeVolume(runtime, name); !ok {
			return nil
		}
		was := now
		now = fn(was)
		if !slices.Equal(now.Refs, was.Refs) {
			tx.PutRuntimeVolume(now)
		}
		return nil
	})
	return now, ok, err
}

// locks are one for each name that is in use.
type locks struct {
	mu sync.Mutex
	by map[string]*lock
}

type lock struct {
	token chan struct{}
	users int
}

// hold waits for the lock of a key. It is held over commits and one bounded look at the
// mount namespaces, never over a call or a wait.
func (l *locks) hold(ctx context.Context, key string) (release func(), err error) {
	l.mu.Lock()
	if l.by == nil {
		l.by = map[string]*lock{}
	}
	k := l.by[key]
	if k == nil {
		k = &lock{token: make(chan struct{}, 1)}
		l.by[key] = k
	}
	k.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(l.by, key)
		}
	}
	select {
	case k.token <- struct{}{}:
		return func() { <-k.token; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
