package records

import (
	"context"

	"github.com/volagent/volagent/agent/dockervol"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// Runtimes adapts the state database for package dockervol.
type Runtimes struct{ Store }

// Update runs fn in one transaction. After an error, no part of the change is stored.
func (s Runtimes) Update(ctx context.Context, fn func(dockervol.Tx) error) error {
	return s.DB.Update(ctx, func(tx *statedb.Tx) error { return fn(runtimeTx{tx}) })
}

// RuntimeVolume returns a volume that a container runtime knows by name.
func (s Runtimes) RuntimeVolume(runtime, name string) (volume.RuntimeVolume, bool) {
	return statedb.RuntimeVolumes.Get(s, volume.RuntimeKey(runtime, name))
}

// RuntimeVolumes returns the volumes of all container runtimes.
func (s Runtimes) RuntimeVolumes() []volume.RuntimeVolume { return statedb.RuntimeVolumes.All(s) }

// runtimeTx is one change of the volumes of container runtimes.
type runtimeTx struct{ *statedb.Tx }

// RuntimeVolume returns a volume that a container runtime knows by name.
func (t runtimeTx) RuntimeVolume(runtime, name string) (volume.RuntimeVolume, bool) {
	return statedb.RuntimeVolumes.Get(t, volume.RuntimeKey(runtime, name))
}

// RuntimeVolumes returns the volumes of all container runtimes.
func (t runtimeTx) RuntimeVolumes() []volume.RuntimeVolume { return statedb.RuntimeVolumes.All(t) }

// PutRuntimeVolume stores a volume of a container runtime.
func (t runtimeTx) PutRuntimeVolume(v volume.RuntimeVolume) { statedb.RuntimeVolumes.Put(t, v) }

// DeleteRuntimeVolume deletes a volume of a container runtime.
func (t runtimeTx) DeleteRuntimeVolume(runtime, name string) {
	statedb.RuntimeVolumes.Delete(t, volume.RuntimeKey(runtime, name))
}
