// Package dockervol serves volumes to docker and podman through their volume plugin API. A
// container uses such a volume with `-v NAME:DIR`.
//
//	service.go  the interfaces of its dependencies; volumes as the runtimes see them
//	options.go  the options (-o) of "docker volume create"
//	create.go   creating a runtime's name for a volume
//	remap.go    the host's ids of root in docker's containers
//	mount.go    references to a volume, and the claim that they share
//	remove.go   removing the name
//	release.go  removed references, and the claims that end with them
//	doubt.go    references that no container explains, and why their claims stay
//	reap.go     references whose containers ended without an Unmount
//	touch.go    the time of the last sign of each reference
//	server.go   HTTP on the socket
//	caller.go   finding the calling runtime
//
// A runtime holds one claim on a volume, regardless of the number of its containers. Docker has an
// id for each mount of a container, and podman has one for all containers. These ids are the
// references. Each is stored with its number of Mounts without an Unmount:
//
//	Mount    The count is increased, then the volume is claimed. A Mount that fails is withdrawn.
//	Unmount  The count is decreased. At 0 the reference is removed, and with the last one the claim.
//
// If the agent is killed, a count may become wrong, because docker repeats the interrupted call.
// After a repeated Mount the count is too high. The reaper then removes the reference once no
// container uses the volume. After a repeated Unmount the count is too low. A claim whose mount
// shows in another mount namespace therefore stays. It is marked as returned until its mount no
// longer shows.
//
// A claim without a reference must be detached. The agent makes and detaches a claim while it holds
// the name's lock. A Mount between the last Unmount and the detach therefore wins.
package dockervol

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// Tx is one change of the store. Either all of it is on disk, or none.
type Tx interface {
	RuntimeVolume(runtime, name string) (volume.RuntimeVolume, bool)
	RuntimeVolumes() []volume.RuntimeVolume
	PutRuntimeVolume(volume.RuntimeVolume)
	DeleteRuntimeVolume(runtime, name string)
}

// Store holds the records. It reads from memory.
type Store interface {
	Volume(id string) (volume.Record, bool)
	Volumes() []volume.Record
	RuntimeVolume(runtime, name string) (volume.RuntimeVolume, bool)
	RuntimeVolumes() []volume.RuntimeVolume
	Update(ctx context.Context, fn func(Tx) error) error
}

// Claims admits and detaches claims.
type Claims interface {
	Claim(ctx context.Context, id string, ask volume.Request, wait time.Duration) (volume.Record, volume.Claim, error)
	// Drop writes the intent to detach a claim to disk. Freed waits until the claim is gone.
	Drop(ctx context.Context, id string, c volume.Claim) error
	Freed(ctx context.Context, id string, c volume.Claim) error
}

// Volumes creates and destroys storage.
type Volumes interface {
	CreateWithin(ctx context.Context, spec volume.Volume, dry bool, wait time.Duration) (volume.Record, volume.Change, error)
	Delete(ctx context.Context, id, confirm string) error
}

// Plugins shows the state of a plugin, from memory.
type Plugins interface {
	View(pluginID string) volume.PluginView
}

// Containers asks the runtimes about their containers.
type Containers interface {
	// Using names the containers that use a runtime's volume, or may be about to. After an error
	// the use is unknown.
	Using(ctx context.Context, runtime, name string) ([]string, error)
}

// Mounts finds other holders of a mount.
type Mounts interface {
	// Elsewhere describes the holders of a mount outside the host's own namespace. It ignores
	// copies of the host's mount at one of the paths. After an error the holders are unknown.
	Elsewhere(ctx context.Context, id volume.MountIdentity, paths []string) ([]string, error)
}

// Patience is how long a runtime waits for an answer, minus the time that the answer needs to reach
// it.
type Patience struct {
	Long  time.Duration // Create and Mount
	Short time.Duration // Unmount and Remove
}

// Service answers the runtimes. Its fields must be set before the first call.
type Service struct {
	Store      Store
	Claims     Claims
	Volumes    Volumes
	Plugins    Plugins
	Containers Containers
	Mounts     Mounts

	// Size parses a size as written in a volume file and returns bytes.
	Size func(string) (int64, error)

	// Remapped returns the host's ids of root in the containers of a docker process. They are empty
	// if they are unknown, or if they are the ids of the host's root.
	Remapped func(pid int) (uid, gid string)
	Patience func(runtime string) Patience
	Events   func(...volume.Event)
	Log      hclog.Logger

	// Now is the clock; nil means the host's clock.
	Now func() time.Time

	locks    locks
	mu       sync.Mutex
	mounting map[string]int // running calls of Mount, by runtime
	turn     uint64         // the number of the last call of Mount
	touched  map[string]map[string]touch
	suspects map[string]int // used by reap.go
	told     reasons
	doubts   []Doubt // from the last look
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

// Get returns a volume only if the runtime created it. Otherwise the runtime would mistake another
// volume of that name for its own. Get does not call the plugin.
func (s *Service) Get(runtime, name string) (View, error) {
	v, ok := s.Store.RuntimeVolume(runtime, name)
	if !ok {
		return View{}, volume.Errorf(volume.ErrNotFound, "%s has no volume %q here", runtime, name).
			WithHint("%s", suggest.Command("%s volume create -d csi %s", runtime, name))
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

// Path returns the path where a volume is mounted, or an empty string if it is not mounted.
func (s *Service) Path(runtime, name string) (string, error) {
	v, err := s.Get(runtime, name)
	return v.Mountpoint, err
}

// view describes a volume from memory. It also shows a volume that was deregistered, because docker
// does not unmount a volume that it cannot get.
func (s *Service) view(v volume.RuntimeVolume) View {
	view := View{Name: v.Name, CreatedAt: v.CreatedAt.UTC().Format(time.RFC3339), Status: map[string]any{
		"volume": v.VolumeID, "references": len(v.Refs), "state": "free",
	}}
	r, ok := s.Store.Volume(v.VolumeID)
	if !ok {
		view.Status["state"] = "deregistered"
		view.Status["note"] = fmt.Sprintf("volagent knows no volume %q any more; %s", v.VolumeID, suggest.Command("%s volume rm %s", v.Runtime, v.Name))
		return view
	}

	view.Status["plugin"], view.Status["plugin_state"] = r.Volume.PluginID, s.Plugins.View(r.Volume.PluginID).State
	for _, c := range r.Ordered() {
		if c.Owner != v.Owner() {
			continue
		}

		view.Status["state"] = string(c.State)
		if c.State == volume.Mounted {
			view.Status["state"], view.Mountpoint = "mounted", c.Path()
		}
	}

	return view
}

// change replaces the references of a name's volume by the result of fn. The caller holds the
// name's lock.
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

// locks holds a lock for each name in use.
type locks struct {
	mu sync.Mutex
	by map[string]*lock
}

type lock struct {
	token chan struct{}
	users int
}

// hold waits for the lock of a key. The lock is held during commits and one bounded check of the
// mount namespaces, never during a call or a wait.
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
