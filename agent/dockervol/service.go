// Package dockervol serves volumes to docker and podman through their volume plugin API. A
// container uses such a volume with `-v NAME:DIR`.
//
//	service.go  the interfaces of the dependencies, and volumes as the runtimes see them
//	options.go  the options (-o) of "docker volume create"
//	create.go   creates a runtime's name of a volume
//	remap.go    finds the ids that root in docker's containers has on the host
//	mount.go    counts the references to a volume, and makes the claim that they share
//	remove.go   removes a name
//	release.go  removes references, and detaches claims without a reference
//	doubt.go    stores the references that no container explains
//	reap.go     removes references whose containers ended without an Unmount
//	touch.go    stores which Mounts run, and when the agent last heard of each reference
//	server.go   HTTP on the socket
//	caller.go   determines the calling runtime
//	shared.go   the second plugin, for shared volumes
//
// A runtime has one claim on a volume, which all its containers share. Docker has an id for each
// mount of a container, and podman has one id for all containers. Each id is a reference. The agent
// stores each reference with a count of its Mounts that no Unmount has followed:
//
//	Mount    The agent increases the count and claims the volume. It withdraws a failed Mount.
//	Unmount  The agent decreases the count. At 0, it removes the reference. After the last
//	         reference, it detaches the claim.
//
// If the agent is killed, a count may become wrong, because docker repeats the interrupted call.
// After a repeated Mount, the count is too high. The reaper then removes the reference when no
// container uses the volume. After a repeated Unmount, the count is too low. A claim therefore
// stays while another mount namespace contains its mount. During this time, its reference is marked
// as returned.
//
// The agent must detach a claim without a reference. It makes and detaches a claim while it holds
// the lock of the name. A Mount between the last Unmount and the detach therefore keeps the claim.
//
// The package agent/service checks the rights of a runtime, creates and deletes volumes, and words
// the errors, as for every other client. Claims are the exception: the package makes them through
// the domain interface Claims, because the API cannot express the claim of a runtime.
package dockervol

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/service"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// Tx makes one atomic change to the store: either the whole change reaches the disk, or nothing
// does.
type Tx interface {
	RuntimeVolume(runtime, name string) (volume.RuntimeVolume, bool)
	RuntimeVolumes() []volume.RuntimeVolume
	PutRuntimeVolume(volume.RuntimeVolume)
	DeleteRuntimeVolume(runtime, name string)
}

// Store reads the records from memory and changes them.
type Store interface {
	Volume(id string) (volume.Record, bool)
	Volumes() []volume.Record
	RuntimeVolume(runtime, name string) (volume.RuntimeVolume, bool)
	RuntimeVolumes() []volume.RuntimeVolume
	Update(ctx context.Context, fn func(Tx) error) error
}

// Claims admits and detaches claims. It uses the types of the domain, because api.ClaimRequest
// cannot express the owner and the default ownership of a runtime's claim.
type Claims interface {
	Claim(ctx context.Context, id string, ask volume.Request, wait time.Duration) (volume.Record, volume.Claim, error)
	// Drop stores the intent to detach a claim. Freed waits until the claim is gone.
	Drop(ctx context.Context, id string, c volume.Claim) error
	Freed(ctx context.Context, id string, c volume.Claim) error
}

// Volumes creates and destroys storage. service.Volumes implements it.
type Volumes interface {
	Create(ctx context.Context, by service.Caller, spec api.VolumeSpec, dry bool, wait time.Duration) (api.VolumeResult, error)
	Delete(ctx context.Context, by service.Caller, id, confirm string) (api.Done, error)
}

// Plugins returns the state of a plugin from memory.
type Plugins interface {
	View(pluginID string) plugin.View
}

// Containers asks the runtimes about their containers.
type Containers interface {
	// Using names the containers that use a runtime's volume, or that may start to use it. If it
	// returns an error, the use is unknown.
	Using(ctx context.Context, runtime, name string) ([]string, error)
}

// Mounts finds the processes that use a mount.
type Mounts interface {
	// Elsewhere describes the users of a mount outside the host's mount namespace. It ignores
	// copies of the host's mount at one of the given paths. If it returns an error, the users are
	// unknown.
	Elsewhere(ctx context.Context, id volume.MountIdentity, paths []string) ([]string, error)
}

// Patience is the time that the agent may take to answer a call. It is the timeout of the runtime,
// minus the time that the answer needs to reach the runtime.
type Patience struct {
	Long  time.Duration // for Create and Mount
	Short time.Duration // for Unmount and Remove
}

// Service answers the calls of the runtimes. The caller must set its fields before the first call.
type Service struct {
	Store      Store
	Claims     Claims
	Volumes    Volumes
	Plugins    Plugins
	Containers Containers
	Mounts     Mounts

	// Size parses a size in the format of a volume file and returns the number of bytes.
	Size func(string) (int64, error)

	// Remapped returns the ids that root in the containers of a docker process has on the host.
	// They are empty if they are unknown, or if they are the ids of root on the host.
	Remapped func(pid int) (uid, gid string)
	Patience func(runtime string) Patience

	// Fetch makes sure that this host has a record of a shared volume, if the cluster has the volume.
	Fetch  func(ctx context.Context, id string) error
	Events func(...volume.Event)
	Log    hclog.Logger

	// Now returns the current time. If it is nil, the service uses the clock of the host.
	Now func() time.Time

	locks    locks
	activity activity
	suspects map[string]int // number of consecutive passes that found no use; see reap.go
	told     reasons
	doubts   doubts
}

func (s *Service) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now().UTC()
}

func (s *Service) say(v volume.RuntimeVolume, typ volume.EventType, message string) {
	s.Events(volume.Event{Type: typ, Volume: v.VolumeID, Message: message})
}

// View describes a volume for a runtime.
type View struct {
	Name       string
	Mountpoint string `json:",omitempty"`
	CreatedAt  string `json:",omitempty"`
	Status     map[string]any
}

// Get returns a volume only if the runtime has created this name. Otherwise, the runtime would
// treat the volume of another runtime as its own. Get does not call the plugin.
func (s *Service) Get(from Caller, name string) (View, error) {
	v, ok := s.named(from, name)
	if !ok {
		return View{}, volume.Errorf(volume.ErrNotFound, "%s has no volume %q here", from.Runtime, name).
			WithHint("%s", suggest.Command("%s volume create -d %s %s", from.Runtime, from.plugin(), name))
	}
	return s.view(v), nil
}

// List returns all volumes that the runtime has created, sorted by name.
func (s *Service) List(from Caller) []View {
	views := []View{}
	for _, v := range s.Store.RuntimeVolumes() {
		if v.Runtime == from.Runtime && v.Shared == from.Shared {
			views = append(views, s.view(v))
		}
	}

	slices.SortFunc(views, func(a, b View) int { return strings.Compare(a.Name, b.Name) })
	return views
}

// Path returns the path at which a volume is mounted, or an empty text if it is not mounted.
func (s *Service) Path(from Caller, name string) (string, error) {
	v, err := s.Get(from, name)
	return v.Mountpoint, err
}

// view describes a volume from memory. It also describes a deregistered volume, because docker does
// not unmount a volume for which Get fails.
func (s *Service) view(v volume.RuntimeVolume) View {
	view := View{Name: v.Name, CreatedAt: v.CreatedAt.UTC().Format(time.RFC3339), Status: map[string]any{
		"volume": v.VolumeID, "references": len(v.Refs), "state": api.StateFree,
	}}
	r, ok := s.Store.Volume(v.VolumeID)
	if !ok && v.Shared {
		return view // this host has no record of a shared volume that it does not use
	}
	if !ok {
		view.Status["state"] = "deregistered"
		view.Status["note"] = fmt.Sprintf("volume %q is no longer registered; %s", v.VolumeID, suggest.Command("%s volume rm %s", v.Runtime, v.Name))
		return view
	}

	view.Status["plugin"], view.Status["plugin_state"] = r.Volume.PluginID, s.Plugins.View(r.Volume.PluginID).State
	for _, c := range r.Ordered() {
		if c.Owner != v.Owner() {
			continue
		}

		view.Status["state"] = string(c.State)
		if c.State == volume.Mounted {
			view.Status["state"], view.Mountpoint = api.StateMounted, c.Path()
		}
	}

	return view
}

// change replaces the runtime's volume with the result of fn. It stores the volume only if its
// references change. The caller holds the lock of the name.
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

// locks contains a lock for each name in use.
type locks struct {
	mu sync.Mutex
	by map[string]*lock
}

type lock struct {
	token chan struct{}
	users int
}

// hold waits for the lock of a key and returns the function that releases it. A caller may hold the
// lock during commits and one bounded check of the mount namespaces. It must not hold the lock
// during a CSI call or a wait.
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

// touch is the time when this agent last received a call about a reference. It is not stored on
// disk. References that are older than this agent process therefore count as new, and a change of
// the clock has no effect on them.
type touch struct {
	turn uint64 // number of the last Mount call for the reference; 0 means none
	at   time.Time
}

// Doubt describes the references of one claim that no container explains.
type Doubt struct {
	Runtime  string
	Name     string // the runtime's name of the volume
	VolumeID string
	Alloc    string
	Since    time.Time // when a pass of this agent first found the doubt
	Leaked   int       // number of references that no container explains
	Of       int       // number of references of the claim

	// Kept is the reason why the claim stays. If it is empty, one of the next passes detaches the
	// claim.
	Kept string
}

// reasons stores the last logged message about each volume.
type reasons struct {
	mu sync.Mutex
	by map[string]string
}
