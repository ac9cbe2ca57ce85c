package dockervol

import (
	"context"
	"fmt"
	"strings"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// Create gives a volume a name in a runtime. With the option plugin, it creates a new volume.
// Otherwise it uses a registered volume. A second Create with the same arguments changes nothing.
func (s *Service) Create(ctx context.Context, from Caller, name string, opts map[string]string) error {
	runtime := from.Runtime
	had, ok := s.Store.RuntimeVolume(runtime, name)
	check := volume.CheckNewID
	if ok {
		check = volume.CheckID // an earlier release may have accepted this name
	}
	if err := check("volume name", name); err != nil {
		return err
	}

	o, err := optionParser{s.Size}.parse(opts)
	if err != nil {
		return err
	}
	if o.excl && runtime == plugin.RuntimePodman {
		return volume.Errorf(volume.ErrInvalid, "exclusive is not possible with %s, which mounts a volume once for all its containers", runtime).
			WithHint("leave it out, or use one volume for each container")
	}
	want := o.named(runtime, name)
	want.CreatedAt, want.Shared = s.now(), from.Shared
	if ok {
		if err := checkName(from, had); err != nil {
			return err
		}
		if differ := had.Differs(want); len(differ) > 0 {
			return differentOptions(s.Store, had, differ)
		}
	}

	created, err := s.provide(ctx, from, want, o)
	if err != nil {
		return err
	}
	if created && runtime == plugin.RuntimeDocker {
		// Give the root directory of the volume to root in the containers, as docker does for its
		// own volumes. Podman changes the owner itself if its user requests this.
		want.Own = want.Own.WithDefault(s.Remapped(from.PID))
	}

	if r, ok := s.Store.Volume(want.VolumeID); ok && o.writable && want.ReadersOnly(r.Volume) {
		return volume.Errorf(volume.ErrInvalid, "volume %q permits only reading in the requested mode, which contradicts rw", want.VolumeID).
			WithHint("leave rw out")
	}
	made := false
	err = s.Store.Update(ctx, func(tx Tx) error {
		made = false
		if had, ok := tx.RuntimeVolume(runtime, name); ok {
			if err := checkName(from, had); err != nil {
				return err
			}
			if differ := had.Differs(want); len(differ) > 0 {
				return differentOptions(s.Store, had, differ)
			}
			return nil
		}
		if err := unique(tx, want); err != nil {
			return err
		}

		tx.PutRuntimeVolume(want)
		made = true
		return nil
	})

	if err == nil && made {
		text := fmt.Sprintf("%s knows it as %q", runtime, name)
		if want.Own.Default {
			text += fmt.Sprintf("; its root directory belongs to %s:%s, which is root in the containers (userns-remap)", want.Own.UID, want.Own.GID)
		}
		s.say(want, volume.EventRuntimeCreated, text)
	}

	return err
}

// differentOptions returns the error for a Create with an existing name and different options.
func differentOptions(store Store, had volume.RuntimeVolume, differ []string) error {
	data := "its data stays"
	if r, ok := store.Volume(had.VolumeID); ok && r.Volume.Reclaim == api.ReclaimDelete {
		data = "that destroys its data (reclaim: delete), unless another runtime also has a name for it"
	}
	return volume.Errorf(volume.ErrRefused, "%s already has volume %q with a different %s", had.Runtime, had.Name, strings.Join(differ, ", ")).
		WithHint("%s first; %s", suggest.Command("%s volume rm %s", had.Runtime, had.Name), data)
}

// unique refuses a second name for the same volume in one runtime. With two names, containers that
// use different names would not share a claim.
func unique(tx Tx, want volume.RuntimeVolume) error {
	for _, v := range tx.RuntimeVolumes() {
		if v.Runtime == want.Runtime && v.VolumeID == want.VolumeID && v.Name != want.Name {
			return volume.Errorf(volume.ErrRefused, "%s already knows volume %q as %q; a volume has only one name in a runtime", v.Runtime, v.VolumeID, v.Name).
				WithHint("use that name (in a compose file, name: %s), or: %s", v.Name, suggest.Command("%s volume rm %s", v.Runtime, v.Name))
		}
	}
	return nil
}

// provide ensures that the volume exists. It reports whether it created the volume.
func (s *Service) provide(ctx context.Context, from Caller, want volume.RuntimeVolume, o options) (created bool, err error) {
	r, ok, err := s.record(ctx, from, want.VolumeID)
	if err != nil {
		return false, err
	}

	_, again := s.named(from, want.Name) // the volume may have changed its scope since the first Create
	if ok && !again {
		if err := checkPlugin(from, r.Volume); err != nil {
			return false, err
		}
	}

	switch {
	case ok && r.Volume.Provision == volume.Provisioned:
		if !o.creates() {
			return false, nil
		}
		if differ := o.differs(r.Volume); len(differ) > 0 {
			return false, volume.Errorf(volume.ErrRefused, "volume %q exists and differs from the options: %s", want.VolumeID, strings.Join(differ, "; ")).
				WithHint("leave these options out to use it as it is (%s), or choose another name", suggest.Command("volctl volume status %s", want.VolumeID))
		}
		return false, nil
	case o.creates():
		spec := o.spec(want.VolumeID)
		if from.Shared {
			spec.Scope = api.ScopeShared
		}
		made, err := s.Volumes.Create(ctx, from.Caller, spec, false, s.Patience(want.Runtime).Long)
		return err == nil && made.Outcome == volume.Created, err
	case ok:
		return false, volume.Errorf(volume.ErrRefused, "volume %q is not ready: %s has not finished", want.VolumeID, r.Volume.Provision).
			WithRemedy(remedy.Of(remedy.ShowVolume, want.VolumeID))
	default:
		return false, s.unknown(want, o)
	}
}

// unknown returns the error for a volume that does not exist. The hint names the volume that the
// caller probably means: Quadlet adds the prefix "systemd-" to a name, and compose adds the name of
// the project.
func (s *Service) unknown(want volume.RuntimeVolume, o options) error {
	err := volume.Errorf(volume.ErrNotFound, "no volume %q is registered", want.VolumeID)
	if o.volume != "" {
		return err.WithHint("volctl volume list")
	}

	known := func(id string) bool { _, ok := s.Store.Volume(id); return ok }
	if id, is := strings.CutPrefix(want.Name, "systemd-"); is && known(id) {
		return err.WithHint("volume %q is registered: write VolumeName=%s into the .volume file", id, id)
	}

	for rest := want.Name; ; {
		_, id, more := strings.Cut(rest, "_")
		if !more {
			break
		}
		if known(id) {
			return err.WithHint("volume %q is registered: write name: %s below it in the compose file, because compose otherwise adds the project name", id, id)
		}

		rest = id
	}

	return err.WithHint("register it (%s), or create it: -o plugin=local -o size=1GiB; to list the plugins and the classes: %s, %s",
		"volctl volume register FILE", "volctl plugin list", "volctl class list")
}
