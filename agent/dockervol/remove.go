package dockervol

import (
	"context"

	"github.com/volagent/volagent/volmgr/volume"
)

// reclaimDelete is the value of a volume's reclaim by which its data goes with the name.
const reclaimDelete = "delete"

// Remove gives up a runtime's name for a volume. The data goes with it if the volume has
// reclaim: delete, and stays otherwise. It is refused while containers refer to it.
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
	if r, ok := s.Store.Volume(v.VolumeID); ok && r.Volume.Reclaim == reclaimDelete {
		if err := s.destroy(ctx, v); err != nil {
			return err
		}
	}
	err := s.Store.Update(context.WithoutCancel(ctx), func(tx Tx) error {
		now, ok := tx.RuntimeVolume(runtime, name)
		if ok && len(now.Refs) > 0 {
			return inUse(now)
		}
		tx.DeleteRuntimeVolume(runtime, name)
		return nil
	})
	if err == nil {
		s.say(v, "runtime-removed", runtime+" gave up its name "+name+" for it")
	}
	return err
}

func inUse(v volume.RuntimeVolume) error {
	who := volume.Containers(len(v.Refs)) + " (" + names(v.Refs) + ")"
	if v.Runtime == volume.RuntimePodman {
		who = "its containers" // one reference stands for all of them
	}
	return volume.Errorf(volume.ErrRefused, "volume %q is in use by %s of %s", v.Name, who, v.Runtime).
		WithHint("%s", volume.Command("%s ps -a --filter volume=%s", v.Runtime, v.Name))
}

// destroy has the plugin delete the volume, once the claims are gone that are on their
// way out.
func (s *Service) destroy(ctx context.Context, v volume.RuntimeVolume) error {
	for _, o := range s.Store.RuntimeVolumes() {
		if o.VolumeID == v.VolumeID && o.Runtime != v.Runtime {
			return volume.Errorf(volume.ErrRefused, "%s knows volume %q too, as %q; with reclaim: delete its data would go", o.Runtime, v.VolumeID, o.Name).
				WithHint("%s first", volume.Command("%s volume rm %s", o.Runtime, o.Name))
		}
	}
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
