package dockervol

import (
	"context"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// Remove removes a runtime's name for a volume. If the volume has reclaim: delete and no other
// runtime has a name for it, Remove also destroys its data. The data of a shared volume always stays,
// because other hosts use it. Remove refuses while containers use the volume.
func (s *Service) Remove(ctx context.Context, from Caller, name string) error {
	v, ok := s.named(from, name)
	if !ok {
		return nil
	}
	if len(v.Refs) > 0 {
		return inUse(v)
	}

	ctx, cancel := context.WithTimeout(ctx, s.Patience(from.Runtime).Short)
	defer cancel()

	r, ok := s.Store.Volume(v.VolumeID)
	if keeps := !ok || v.Shared || r.Volume.Shared || r.Volume.Reclaim != api.ReclaimDelete; keeps {
		_, err := s.giveUpName(ctx, v, true)
		return err
	}

	// If another runtime has a name for the volume, remove only the name and keep the data. The
	// check and the removal are one transaction. Otherwise, if two runtimes remove the volume at
	// the same time, neither of them might destroy the data.
	gone, err := s.giveUpName(ctx, v, false)
	if err != nil || gone {
		return err
	}
	if err := s.destroy(ctx, from, v); err != nil {
		return err
	}

	_, err = s.giveUpName(ctx, v, true)
	return err
}

// giveUpName removes a runtime's name for a volume. Without always, it does so only if another
// runtime also has a name for the volume. It reports whether it removed the name.
func (s *Service) giveUpName(ctx context.Context, v volume.RuntimeVolume, always bool) (gone bool, err error) {
	message := v.Runtime + " removed its name " + v.Name + " for it"
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
			message += "; " + other.Runtime + " also has a name for it, so its data stays"
		}
		tx.DeleteRuntimeVolume(v.Runtime, v.Name)
		gone = true
		return nil
	})

	if err == nil && gone {
		s.say(v, volume.EventRuntimeRemoved, message)
	}
	return gone && err == nil, err
}

// knownToo returns the name that another runtime has for the volume.
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
	if v.Runtime == plugin.RuntimePodman {
		who = "its containers" // podman has one reference for all its containers
	}
	return volume.Errorf(volume.ErrRefused, "volume %q is in use by %s of %s", v.Name, who, v.Runtime).
		WithHint("%s", suggest.Command("%s ps -a --filter volume=%s", v.Runtime, v.Name))
}

// destroy waits until the detaching claims are gone, and then asks the plugin to delete the volume.
func (s *Service) destroy(ctx context.Context, from Caller, v volume.RuntimeVolume) error {
	r, _ := s.Store.Volume(v.VolumeID)
	for _, c := range r.Ordered() {
		if c.Owner == v.Owner() && !c.Wanted {
			if err := s.Claims.Freed(ctx, v.VolumeID, c); err != nil {
				return err
			}
		}
	}

	_, err := s.Volumes.Delete(ctx, from.Caller, v.VolumeID, v.VolumeID)
	return err
}

// names lists the ids of the references in docker's short form.
func names(refs []volume.RuntimeRef) string {
	short := make([]string, 0, len(refs))
	for _, r := range refs {
		short = append(short, r.ID[:min(len(r.ID), 12)])
	}
	slices.Sort(short)
	return strings.Join(short, ", ")
}
