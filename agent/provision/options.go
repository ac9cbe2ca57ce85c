package provision

import (
	"context"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
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
	// Change does the same as Exclusive, but fn makes a call that changes the storage.
	Change(ctx context.Context, id string, fn func() error) error

	// Call does the same as Exclusive, but fn makes a create or a delete call. While fn runs, the
	// status of the volume shows the step.
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

	// Await waits until the plugin is ready. It returns an ErrPluginUnavailable if the plugin does
	// not become ready.
	Await(ctx context.Context, pluginID string) error

	// Provisioner returns the caller for the calls that create, delete and snapshot volumes.
	Provisioner(pluginID string) (call.Caller, error)

	// Reporter returns the caller for the calls about existing volumes. If the plugin has several
	// controllers, all calls that change nothing go to the same controller, because the pages of a
	// listing belong together.
	Reporter(pluginID string) (call.Caller, error)
}

// Controllers lets other hosts make controller calls, if the plugin of this host has no controller.
type Controllers interface {
	// AwaitController waits until another host can make the calls for a volume. It returns the view of
	// the plugin with this controller, or an ErrPluginUnavailable.
	AwaitController(ctx context.Context, v volume.Volume, own plugin.View) (plugin.View, error)
	// Borrow returns the view of the plugin with the controllers of other hosts, as far as this host
	// knows them.
	Borrow(v volume.Volume, own plugin.View) plugin.View
	// Caller returns the client by which other hosts make announced calls for a volume. They resolve the
	// secrets of the volume themselves.
	Caller(v volume.Volume) call.Caller
	// Hosts returns the hosts that have a controller of a plugin.
	Hosts(ctx context.Context, pluginID, driver string) ([]string, error)
}

// Seal encrypts the secret values that a volume file contains before the agent stores them.
type Seal interface {
	// Seal returns the secret references of the volume, with every literal value encrypted. If had
	// contains the same value in encrypted form, Seal uses the encrypted value from had.
	Seal(id string, refs, had map[string]call.SecretRef) (map[string]call.SecretRef, error)
	// Same replaces each literal in refs with the sealed value in had, if both have the same value.
	// It seals nothing, so the result may still contain literals.
	Same(id string, refs, had map[string]call.SecretRef) map[string]call.SecretRef
	// Equal compares the literals in refs with the sealed values in had, including values that were
	// sealed with an older key. It replaces each literal that has the same value with the sealed
	// value. It seals nothing.
	Equal(id string, refs, had map[string]call.SecretRef) map[string]call.SecretRef
	// Move re-encrypts the sealed values of the volume with the id from, for the volume with the id
	// to.
	Move(refs map[string]call.SecretRef, from, to string) (map[string]call.SecretRef, error)
}

// Options are the dependencies of a Service.
type Options struct {
	Store   Store
	Queue   Queue
	Plugins Plugins

	// Secrets reads the values of all secrets of a volume just before a call. For a call that is
	// not about a particular volume, the volume in the argument has no id.
	Secrets func(volume.Volume) (call.Secrets, error)

	Seal   Seal
	Events func(...volume.Event)

	// Owners reports which owners of claims have ended. Nil means that no owner has ended.
	Owners volume.Owners

	Guards Guards

	// Cluster keeps the shared volumes. It is nil if no cluster is configured.
	Cluster Cluster

	// Controllers lets other hosts make the controller calls for shared volumes. It is nil if no cluster
	// is configured.
	Controllers Controllers

	// Allowed returns an error if the definition of a shared volume may not use a secret on this
	// host.
	Allowed func(call.SecretRef) error

	// Node is the name of this host.
	Node string

	// Halt is the reason why the agent calls no plugin. It is empty in normal operation.
	Halt string

	// Pause waits for d or until ctx ends. If it is nil, the service waits with a timer.
	Pause func(ctx context.Context, d time.Duration) error
}
