package dockervol

import (
	"context"

	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// reclaimDelete is the value of a volume's reclaim with which Remove also destroys the data.
const reclaimDelete = "delete"

// Remove removes a runtime's name for a volume. If the volume has reclaim: delete and no other
// runtime knows it, Remove also destroys its data. It refuses while containers refer to the volume.
func (s *Service) Remove(ctx context.Context, runtime, name string) error {
	v, ok := s.Store.RuntimeVolume(runtime, name)
	if !ok {
		return nil
	}
	if len(v.Refs) > 0 {
		return inUse(v)
	}

	ctx, cancel := context.WithTimeout(ctx, s.Patience(runtime).Short)
	defer cancel()

	if r, ok := s.Store.Volume(v.VolumeID); !ok || r.Volume.Reclaim != reclaimDelete {
		_, err := s.giveUpName(ctx, v, true)
		return err
	}

	// If another runtime knows the volume, the name is removed without destroying data. The check
	// and the removal are one transaction. Otherwise two runtimes that remove the volume at the
	// same time could each leave its data to the other.
	gone, err := s.giveUpName(ctx, v, false)
	if err != nil || gone {
		return err
	}
	if err := s.destroy(ctx, v); err != nil {
		return err
	}

	_, err = s.giveUpName(ctx, v, true)
	return err
}

// giveUpName removes a runtime's name for a volume: always, or only if another runtime knows the
// volume too. It reports whether the name is gone.
func (s *Service) giveUpName(ctx context.Context, v volume.RuntimeVolume, always bool) (gone bool, err error) {
	message := v.Runtime + " gave up its name " + v.Name + " for it"
	err = s.Store.Update(context.WithoutCancel(ctx), func(tx Tx) error {
		gone = false
		if now, ok := tx.RuntimeVolume(v.Runtime, v.Name); ok && len(now.Refs) > 0 {
			return inUse(now)
		}

		other, shared := knownToo(tx, v)
		if !always && !shared {
			return nil
		}
		if !always {
			message += "; " + other.Runtime + " knows it too, so its data stays"
		}
		tx.DeleteRuntimeVolume(v.Runtime, v.Name)
		gone = true
		return nil
	})

	if err == nil && gone {
		s.say(v, "runtime-removed", message)
	}
	return gone && err == nil, err
}

// knownToo returns the name that another runtime has for a volume.
func knownToo(tx Tx, v volume.RuntimeVolume) (other volume.RuntimeVolume, ok bool) {
	for _, o := range tx.RuntimeVolumes() {
		if o.VolumeID == v.VolumeID && o.Runtime != v.Runtime {
			return o, true
		}
	}
	return other, false
}

func inUse(v volume.RuntimeVolume) error {
	who := volume.Containers(len(v.Refs)) + " (" + names(v.Refs) + ")"
	if v.Runtime == volume.RuntimePodman {
		who = "its containers" // one reference stands for all of them
	}
	return volume.Errorf(volume.ErrRefused, "volume %q is in use by %s of %s", v.Name, who, v.Runtime).
		WithHint("%s", suggest.Command("%s ps -a --filter volume=%s", v.Runtime, v.Name))
}

// destroy waits until the detaching claims are gone, and then makes the plugin delete the volume.
func (s *Service) destroy(ctx context.Context, v volume.RuntimeVolume) error {
	r, _ := s.Store.Volume(v.VolumeID)
	for _, c := range r.Ordered() {
		if c.Owner == v.Owner() && !c.Wanted {
			if err := s.Claims.Freed(ctx, v.VolumeID, c); err != nil {
				return err
			}
		}
	}

	return s.Volumes.Delete(ctx, v.VolumeID, v.VolumeID)
}
