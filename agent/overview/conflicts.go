package overview

import (
	"context"
	"slices"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// conflictPage is the number of volumes that one read examines. Each volume needs two operations,
// and etcd permits 128 operations in a transaction by default.
const conflictPage = 50

// Taken describes a volume of this host whose id or storage a shared volume has.
type Taken struct {
	Volume  string // the id of the volume on this host
	Shared  string // the id of the shared volume
	Storage bool   // both have the same storage; otherwise they only have the same id
}

// Taken returns the volumes among own whose id or storage a shared volume has. The argument own
// contains volumes with the scope host. A volume with the id and the storage of a shared volume is
// not among the results, because it is the shared volume after an interrupted share.
func (s *Service) Taken(ctx context.Context, own []volume.Volume) (all []Taken, err error) {
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()

	for part := range slices.Chunk(own, conflictPage) {
		var ops []shared.Op
		for _, v := range part {
			ops = append(ops, shared.Get(shared.VolumeKey(v.ID)), shared.Get(shared.ExternalKey(v.Driver, v.ExternalID)))
		}
		reads, err := s.read(ctx, ops...)
		if err != nil {
			return nil, s.unreadable("the shared volumes", err)
		}

		for i, v := range part {
			taken, err := takes(v, reads[2*i], reads[2*i+1])
			if err != nil {
				return nil, err
			}
			all = append(all, taken...)
		}
	}

	return all, nil
}

// takes compares one volume with the shared volumes that have its id and its storage.
func takes(v volume.Volume, byID, byStorage []shared.KV) (all []Taken, err error) {
	def, err := first[shared.Definition](byID)
	if err != nil {
		return nil, err
	}
	storage, err := first[shared.Claimed](byStorage)
	if err != nil {
		return nil, err
	}

	other := storage.Value.Volume
	if def.Exists() && other != v.ID {
		all = append(all, Taken{Volume: v.ID, Shared: v.ID})
	}
	if v.ExternalID != "" && storage.Exists() && other != v.ID {
		all = append(all, Taken{Volume: v.ID, Shared: other, Storage: true})
	}
	return all, nil
}

// Rivals returns, for each of the given holds of this host, the other host that holds the volume, if
// the mode of the hold permits only one host. The keys of the result are volume ids.
func (s *Service) Rivals(ctx context.Context, holds []shared.HoldView) (map[string]string, error) {
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()

	rivals := map[string]string{}
	for part := range slices.Chunk(holds, conflictPage) {
		var ops []shared.Op
		for _, h := range part {
			ops = append(ops, shared.Get(shared.UseKey(h.Volume)))
		}
		reads, err := s.read(ctx, ops...)
		if err != nil {
			return nil, s.unreadable("the holders of shared volumes", err)
		}

		for i, h := range part {
			use, err := first[shared.Use](reads[i])
			if err != nil {
				return nil, err
			}
			if rival := use.Value.Rival(h); rival != "" {
				rivals[h.Volume] = rival
			}
		}
	}

	return rivals, nil
}
