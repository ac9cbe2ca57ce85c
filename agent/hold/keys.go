package hold

import (
	"context"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// keys reads the keys of volumes, and executes decisions about them.
type keys struct {
	*membership

	cached map[string]shared.Situation // situations of volumes with a step in progress
	lanes  *lanes
	lag    lag
}

// get reads keys, and notices a store that has gone back or does not answer.
func (s *keys) get(ctx context.Context, reads []shared.Op) (shared.Result, error) {
	seen := s.seenRevision()
	res, err := s.Store.Do(ctx, shared.Txn{Then: reads})
	if err == nil {
		err = s.noteRevision(res.Revision, seen)
	}
	if err != nil {
		s.noteError(err)
	}
	return res, err
}

// read reads the keys about a volume.
func (s *keys) read(ctx context.Context, id string) (shared.Situation, error) {
	res, err := s.get(ctx, shared.Reads(s.Node, id))
	if err != nil {
		return shared.Situation{}, err
	}
	return shared.ParseSituation(s.Node, id, res)
}

// takeCached returns the situation that the last step of a volume has left, and forgets it.
func (s *keys) takeCached(id string) (shared.Situation, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	sit, ok := s.cached[id]
	delete(s.cached, id)
	return sit, ok
}

// Definition reads the definition of a shared volume. The next step of the volume uses the same
// read. The result ok is false if the cluster has no such volume.
func (s *keys) Definition(ctx context.Context, id string) (v volume.Volume, ok bool, err error) {
	sit, err := s.read(ctx, id)
	if err != nil || !sit.Volume.Exists() {
		return v, false, err
	}

	s.mu.Lock()
	s.cached[id] = sit
	s.mu.Unlock()

	return definitionOf(sit), true, nil
}

// Find returns the definition of a shared volume. The result ok is false if the cluster has no such
// volume. While the cluster is not reachable, Find returns ErrPluginUnavailable. It also does
// so if this host finds no volume and is not registered, because it may look in the wrong place.
func (s *keys) Find(ctx context.Context, id string) (v volume.Volume, ok bool, err error) {
	v, ok, err = s.Definition(ctx, id)
	if err == nil && !ok {
		_, err = s.Asker()
	}
	if err != nil {
		return v, false, s.cannotLook(id, err)
	}
	return v, ok, nil
}

// readPlace reads the keys that decide about a definition.
func (s *keys) readPlace(ctx context.Context, v volume.Volume) (shared.Place, error) {
	res, err := s.get(ctx, shared.PlaceReads(s.Node, v))
	if err != nil {
		return shared.Place{}, err
	}
	return shared.ParsePlace(s.Node, v, res.Reads)
}

// refresh gives the record of this host the definition that the cluster has.
func (s *keys) refresh(ctx context.Context, p shared.Place) error {
	if !p.Volume.Exists() {
		return nil
	}
	return s.redefine(ctx, p.Shown().Volume)
}

// redefine gives the record of this host a newer definition, and wakes the volume. It does nothing if
// this host has no record of the shared volume, or if the record belongs to an earlier volume.
func (s *keys) redefine(ctx context.Context, def volume.Volume) error {
	if r, ok := s.Records.Volume(def.ID); !ok || !r.Volume.Shared {
		return nil
	}

	changed := false
	err := s.Records.ChangeShared(ctx, def.ID, func(r volume.Record, ok bool) (volume.Record, bool) {
		changed = false
		if !ok || !r.Volume.Shared || r.Held() && !r.Same(volume.Record{Volume: def}) {
			return r, false
		}

		now := r.Redefined(def)
		changed = !now.SameDefinition(r)
		return now, changed
	})
	if changed && err == nil {
		s.Wake(def.ID)
	}
	return err
}

// attaches reports whether this host knows that the volumes of a plugin need ControllerPublishVolume.
func (s *keys) attaches(pluginID string) bool {
	return s.Info != nil && s.Info().Plugins[pluginID].Caps.Attach
}

// readArrival reads the keys that decide about the registration of this host.
func (s *keys) readArrival(ctx context.Context) (shared.Arrival, error) {
	res, err := s.Store.Do(ctx, shared.Txn{Then: shared.ArrivalReads(s.Node)})
	if err != nil {
		return shared.Arrival{}, err
	}
	return shared.ParseArrival(s.Node, res)
}

// earlierInfo reads the last description of this host's plugins from the cluster.
func (s *keys) earlierInfo(ctx context.Context) (shared.Entry[shared.NodeInfo], error) {
	page, err := s.Store.Range(ctx, shared.Span{Key: shared.NodeInfoKey(s.Node)}, 1, 0)
	if err != nil || len(page.KVs) == 0 {
		return shared.Entry[shared.NodeInfo]{}, err
	}
	return shared.Decode[shared.NodeInfo](page.KVs[0])
}

// awaitEvent waits for the first change of the keys. It also returns if the watch fails.
func (s *keys) awaitEvent(ctx context.Context, keys []shared.Span, from int64) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the watch

	for evs := range s.Store.Watch(ctx, keys, from) {
		if evs.Err != nil || len(evs.Changes) > 0 {
			return
		}
	}
}
