package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// Tx makes one atomic change to the store: either the whole change reaches the disk, or nothing
// does.
type Tx interface {
	Volume(id string) (volume.Record, bool)
	PutVolume(volume.Record)
	DeleteVolume(id string)
	VolumeOf(driver, external string) (string, bool)

	// TestOf returns the plugin whose running test uses this storage volume.
	TestOf(driver, external string) (pluginID string, ok bool)

	// Leftovers returns the leftover records. The store has one such record for each forced
	// deregister that left something to undo.
	Leftovers() []volume.Record
	Leftover(driver, external string) (volume.Record, bool)
	PutLeftover(r volume.Record, since time.Time)
	DeleteLeftover(driver, external string)
	SnapshotTx
}

// Store reads and changes the stored volume records and snapshot intents.
type Store interface {
	Volume(id string) (volume.Record, bool)

	// Snapshots returns the stored intents of snapshots that the agent has not yet seen finished.
	Snapshots() []volume.SnapshotIntent

	// SnapshotNames returns the names of the snapshots whose id at the plugin is known.
	SnapshotNames() []volume.SnapshotName

	Update(ctx context.Context, fn func(Tx) error) error
}

// Guards controls the guards of own directories. A guarded directory refuses writes while no volume
// is mounted on it.
type Guards interface {
	// Unguard makes the directory dir, which the record of volume id names, writable again. It
	// leaves the directory guarded if the record of another volume also names it. It fails while
	// something is mounted on the directory.
	Unguard(dir volume.GuardedDir, id string) error
}

// Queue runs the calls for a volume one at a time, and unmounts volumes that have no claim.
type Queue interface {
	// Exclusive runs fn while no other call runs for the volume or for its storage. If id is the
	// key of a leftover record, Exclusive excludes only the calls for that storage.
	Exclusive(ctx context.Context, id string, fn func() error) error
	// Change does the same as Exclusive, for a call that changes the storage.
	Change(ctx context.Context, id string, fn func() error) error

	// Call does the same as Exclusive, for a create or a delete. The status of the volume shows the
	// step.
	Call(ctx context.Context, id string, step call.Method, fn func() error) error
	Wake(id string)
	Changed(id string) <-chan struct{}

	// Attempt returns the current step of a volume, or nil if the volume has no step.
	Attempt(id, alloc string) *volume.Attempt
	Forget(id string)
}

// Plugins finds plugins by id and reports their state.
type Plugins interface {
	View(pluginID string) plugin.View

	// IDs returns the ids of all plugins, sorted.
	IDs() []string

	// Await waits until the plugin is ready. Otherwise it returns an ErrPluginUnavailable.
	Await(ctx context.Context, pluginID string) error

	// Provisioner makes the calls that create, delete and snapshot volumes.
	Provisioner(pluginID string) (call.Caller, error)

	// Reporter makes the calls about existing volumes. It sends all calls that only ask for
	// something to the same controller, because the pages of a listing belong together.
	Reporter(pluginID string) (call.Caller, error)
}

// Seal encrypts the secret values that a volume file contains before the agent stores them.
type Seal interface {
	// Seal returns the secret references of the volume, with every literal value encrypted. It
	// keeps those values in had that are encrypted already.
	Seal(id string, refs, had map[string]call.SecretRef) (map[string]call.SecretRef, error)
	// Same replaces each literal in refs by the sealed value in had, if both have the same value.
	// It seals nothing. Literals that remain in its result still need sealing.
	Same(id string, refs, had map[string]call.SecretRef) map[string]call.SecretRef
	// Equal compares the literals in refs with the sealed values in had, including values that an
	// older key sealed. It replaces each literal that has the same value by the sealed value. It
	// seals nothing.
	Equal(id string, refs, had map[string]call.SecretRef) map[string]call.SecretRef
	// Move re-encrypts sealed values of the volume from for the volume to.
	Move(refs map[string]call.SecretRef, from, to string) (map[string]call.SecretRef, error)
}

// Service registers, creates, changes, snapshots and deletes volumes.
type Service struct {
	Store   Store
	Queue   Queue
	Plugins Plugins

	// Secrets reads the values of all secrets of a volume just before a call. For a call that
	// concerns no single volume, the volume in the argument has no id.
	Secrets func(volume.Volume) (call.Secrets, error)

	Seal   Seal
	Events func(...volume.Event)

	// Owners reports which owners of claims have ended. Nil means that no owner has ended.
	Owners volume.Owners

	// Guards removes the guards of own directories. Nil means that this agent guards no directory.
	Guards Guards

	// Halt is the reason why the agent calls no plugin. It is empty in normal operation.
	Halt string

	// Pause waits for d or until ctx ends. If it is nil, the service waits with a timer.
	Pause func(ctx context.Context, d time.Duration) error

	reports reports
	doing   doing
}

// awaitPlugin limits how long a request waits for a plugin that is starting.
const awaitPlugin = 30 * time.Second

// plugin checks that the plugin is configured, and returns its name, version and capabilities. If
// the plugin is down, plugin returns the values from an earlier start.
func (s *Service) plugin(ctx context.Context, id string) (plugin.Info, error) {
	if s.Halt != "" {
		return plugin.Info{}, volume.Errorf(volume.ErrRefused, "cannot call plugin %q: %s", id, s.Halt)
	}

	v := s.Plugins.View(id)
	if !v.Known {
		return plugin.Info{}, volume.Errorf(volume.ErrNotFound, "no plugin %q", id).WithHint("volctl plugin list")
	}
	if v.Info.Driver != "" {
		return v.Info, nil
	}

	return s.ready(ctx, id)
}

// ready waits until the plugin is ready, and returns its name, version and capabilities.
func (s *Service) ready(ctx context.Context, id string) (plugin.Info, error) {
	if s.Halt != "" {
		return plugin.Info{}, volume.Errorf(volume.ErrRefused, "cannot call plugin %q: %s", id, s.Halt)
	}
	if !s.Plugins.View(id).Known {
		return plugin.Info{}, volume.Errorf(volume.ErrNotFound, "no plugin %q", id).WithHint("volctl plugin list")
	}

	ctx, cancel := context.WithTimeout(ctx, awaitPlugin)
	defer cancel()

	if err := s.Plugins.Await(ctx, id); err != nil {
		return plugin.Info{}, err
	}

	return s.Plugins.View(id).Info, nil
}

// aloneWithin limits how long a registration waits for another call for the same storage. After
// this time, the registration continues without asking the plugin.
const aloneWithin = 5 * time.Second

// alone runs learn and exists while no other call for the same storage runs. A call that undoes
// leftovers of this storage may be running. If that call hangs, alone skips both checks.
func (s *Service) alone(ctx context.Context, v *volume.Volume) error {
	wait, cancel := context.WithTimeout(ctx, aloneWithin)
	defer cancel()

	var asked error
	err := s.Queue.Exclusive(wait, volume.LeftoverKey(v.Driver, v.ExternalID), func() error {
		if asked = s.learn(ctx, v); asked == nil {
			asked = s.exists(ctx, *v)
		}
		return nil
	})
	if err != nil {
		return ctx.Err() // nil if only the wait timed out
	}

	return asked
}

// wake makes the queue process the volume and the leftovers of the same storage.
func (s *Service) wake(v volume.Volume) {
	s.Queue.Wake(volume.LeftoverKey(v.Driver, v.ExternalID))
	s.Queue.Wake(v.ID)
}

func failed(err error) (volume.Record, volume.Change, error) {
	return volume.Record{}, volume.Change{}, err
}

func (s *Service) say(r volume.Record, typ, format string, args ...any) {
	s.Events(volume.Event{Type: typ, Volume: r.Volume.ID, Plugin: r.Volume.PluginID, Message: fmt.Sprintf(format, args...)})
}

// SnapshotTx reads and changes the stored snapshot intents and snapshot names.
type SnapshotTx interface {
	Snapshot(key string) (volume.SnapshotIntent, bool)
	PutSnapshot(volume.SnapshotIntent)
	DeleteSnapshot(key string)

	// SnapshotNames returns the stored names. A name stays stored after the agent has deleted the
	// intent.
	SnapshotNames() []volume.SnapshotName
	PutSnapshotName(volume.SnapshotName)
	DeleteSnapshotName(key string)
}

// Behind describes the leftovers that remain on this host and at the plugin after the record is
// gone.
func Behind(r volume.Record) []string {
	var left []string
	add := func(format string, args ...any) { left = append(left, fmt.Sprintf(format, args...)) }
	for _, c := range r.Ordered() {
		if c.Bound != volume.Absent {
			add("%s may still be mounted (bound for %q)", c.At, c.Alloc)
		}
		if c.Published != volume.Absent {
			add("%s may still be mounted (published for %q)", c.Target, c.Alloc)
		}
	}

	if r.Node.Staged != volume.Absent {
		add("%s may still be mounted (staged)", r.Node.StagingPath)
	}
	for _, d := range r.Node.PendingCalls {
		add("pending call to plugin %q: %s %s", r.Volume.PluginID, d.Kind, d.Path)
	}
	if r.Node.Attached != volume.Absent {
		add("external_id %q may still be attached to node %q", r.Volume.ExternalID, r.Node.NodeID)
	}
	switch r.Volume.Provision {
	case volume.Provisioning:
		add("plugin %q may have made a volume named %q", r.Volume.PluginID, r.Volume.Name)
	case volume.Deleting:
		add("plugin %q may still have, or may have deleted, external_id %q", r.Volume.PluginID, r.Volume.ExternalID)
	}

	return left
}

// reports keeps the last report of each volume, in memory only. The agent asks for a report when a
// user requests one, and at the interval in the configuration.
type reports struct {
	mu  sync.Mutex
	all map[string]kept
}

// errLookOnly ends a read-only transaction, so that the store commits nothing.
var errLookOnly = errors.New("nothing is changed")

// within limits ctx to the duration wait. With 0, it returns ctx unchanged.
func within(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	if wait <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, wait, errLate)
}

// unguard makes the own directories of a volume writable before the agent forgets the volume. If
// the agent then keeps the volume, the next mount guards the directories again. A volume that may
// still have mounts on this host keeps its guards, because its leftover record names the
// directories. The result describes each directory that stays immutable.
func (s *Service) unguard(id string, may func(volume.Record) error) (left []string) {
	r, ok := s.Store.Volume(id)
	if !ok || s.Guards == nil || r.Held() || may(volume.Past(r, s.Owners)) != nil {
		return nil
	}
	return s.unguardAll(r, id)
}

// unguardLast makes the directories of a forgotten volume writable, unless another record still
// names them. It is a second pass after unguard, for two volumes that name the same directory and
// are forgotten at the same time. In the first pass, each volume still sees the record of the other
// volume, so unguard keeps the directory guarded.
func (s *Service) unguardLast(gone volume.Record) (left []string) {
	if s.Guards == nil {
		return nil
	}

	left = s.unguardAll(gone, "")
	if !gone.Leftover && !gone.Held() {
		return nil // unguard has already reported these directories
	}

	return left
}

// unless returns the error for an id without a volume. The error mentions the leftover records of
// this id.
func unless(known bool, err error, tx Tx, id string) error {
	if known || err != nil {
		return err
	}

	for _, d := range leftovers(tx, id) {
		return volume.Errorf(volume.ErrNotFound, "volume %q was already deregistered by force; plugin %q must still undo its leftovers: %s",
			id, d.Volume.PluginID, strings.Join(Behind(d), "; ")).WithHint("to see the leftovers: volctl node status; to discard them: %s", suggest.Command("volctl volume deregister %s --force --forget", id))
	}

	return unknown(id)
}

// kept is a report together with the record that the report describes.
type kept struct {
	volume.Report
	of volume.Record
}

func (rs *reports) forget(id string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.all, id)
}

// doing holds a text about the progress of each running snapshot, by the key of its intent.
type doing struct {
	mu    sync.Mutex
	words map[string]string
}

// learn asks the plugin about a volume before the volume is registered. It sets the size and the
// topologies from which hosts can reach the volume. It sets the context only if the file has none.
// If the plugin is down or does not answer, learn leaves the volume unchanged.
func (s *Service) learn(ctx context.Context, v *volume.Volume) error {
	if view := s.Plugins.View(v.PluginID); !view.ReadyFor(call.ControllerGetVolume) || !view.Info.Caps.Get {
		return nil
	}

	p, err := s.Plugins.Reporter(v.PluginID)
	if err != nil {
		return err
	}

	got, err := call.Do(ctx, p, call.GetVolumeRequest{ExternalID: v.ExternalID})
	var ce *volume.CallError
	switch {
	case errors.As(err, &ce) && ce.Code == volume.CodeNotFound:
		return volume.Errorf(volume.ErrNotFound, "plugin %q has no volume %q: %s", v.PluginID, v.ExternalID, ce.Message)
	case err != nil || got.ExternalID != v.ExternalID:
		return ctx.Err()
	}

	v.Capacity, v.Topologies = max(got.Capacity, 0), got.Topologies
	if len(v.Context) == 0 {
		v.Context = got.Context
	}

	return nil
}

// unguardAll makes those directories of a record writable that no other record names. It returns a
// description of each directory that stays immutable.
func (s *Service) unguardAll(r volume.Record, but string) (left []string) {
	for _, dir := range r.AllGuards() {
		if err := s.Guards.Unguard(dir, but); err != nil {
			left = append(left, fmt.Sprintf("%v; the directory stays immutable until: %s", err, suggest.Command("chattr -i %s", dir.Path)))
		}
	}

	return left
}

func leftovers(tx Tx, id string) []volume.Record {
	return slices.DeleteFunc(tx.Leftovers(), func(r volume.Record) bool { return r.Volume.ID != id })
}

// errLate is the cause of a context whose wait has timed out.
var errLate = errors.New("the wait is over")
