package dockervol

import (
	"context"
	"errors"
	"time"

	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// settleWithin limits the duration of commits that must happen even if the caller has disconnected.
const settleWithin = 10 * time.Second

// maxRef is the maximum length of a reference id, in bytes. The ids of docker and podman have 64
// bytes.
const maxRef = 256

// Mount mounts a volume for a reference and returns the path. It answers before the runtime times
// out. If the volume is not mounted by then, Mount withdraws the request and returns the reason.
// Another Mount for the same id returns the same path and increases the count of the reference.
func (s *Service) Mount(ctx context.Context, from Caller, name, id string) (string, error) {
	switch {
	case id == "":
		return "", volume.Errorf(volume.ErrInvalid, "%s sent no id with the Mount of volume %q", from.Runtime, name)
	case len(id) > maxRef:
		return "", volume.Errorf(volume.ErrInvalid, "%s mounts volume %q with an id of %d bytes; the maximum is %d", from.Runtime, name, len(id), maxRef)
	}

	began := time.Now()
	defer s.activity.beginMount(from.Runtime)()

	v, of, turn, err := s.refer(ctx, from, name, id)
	if err != nil {
		return "", err
	}
	defer func() { s.activity.endMount(v.Key(), id, s.now()) }()
	ref, _ := v.Ref(id)

	// The time that has already passed reduces the time until the runtime times out.
	wait := s.Patience(from.Runtime).Long - time.Since(began)
	_, c, err := s.Claims.Claim(ctx, v.VolumeID, v.Request(ref.Alloc, of), max(wait, time.Second))
	if err == nil {
		return c.Path(), nil
	}

	stopping := errors.Is(context.Cause(ctx), volume.ErrStopping)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
	defer cancel()

	if failed := s.withdraw(ctx, from, v, id, turn, stopping); failed != nil {
		s.Log.Warn("cannot remove the reference of a container that did not start; the agent removes it when no container uses the volume",
			"runtime", from.Runtime, "volume", name, "error", failed)
	}
	return "", err
}

// withdraw undoes a failed Mount, because the runtime sends no Unmount for it. If the agent is
// stopping, the claim stays, because the runtime repeats the Mount after the agent's restart.
func (s *Service) withdraw(ctx context.Context, from Caller, v volume.RuntimeVolume, id string, turn uint64, stopping bool) error {
	uncount := func(v volume.RuntimeVolume) volume.RuntimeVolume {
		// Podman's Mounts are not counted: a later Mount for the same id replaces the earlier one.
		if from.Runtime == plugin.RuntimePodman && s.activity.last(v.Key(), id, s.now()).turn != turn {
			return v
		}
		return v.Unmounting(id, from.Process)
	}

	if !stopping {
		_, err := s.giveBack(ctx, v.Runtime, v.Name, uncount)
		return err
	}

	release, err := s.locks.hold(ctx, v.Key())
	if err != nil {
		return err
	}
	defer release()
	_, _, err = s.change(ctx, v.Runtime, v.Name, uncount)
	return err
}

// refer increases the count of a reference, and stores the count before the agent makes the claim.
// If the agent does not know the name, refer creates the name for the volume with the same id. This
// helps podman, which never repeats Create.
func (s *Service) refer(ctx context.Context, from Caller, name, id string) (v volume.RuntimeVolume, of volume.Volume, turn uint64, err error) {
	if _, ok := s.named(from, name); !ok {
		if err := s.Create(ctx, from, name, nil); err != nil {
			return v, of, 0, err
		}
	}

	release, err := s.locks.hold(ctx, volume.RuntimeKey(from.Runtime, name))
	if err != nil {
		return v, of, 0, err
	}
	defer release()
	if v, ok := s.named(from, name); ok {
		r, ok, err := s.record(ctx, from, v.VolumeID)
		if err != nil {
			return v, of, 0, err
		}
		if !ok {
			return v, of, 0, volume.Errorf(volume.ErrNotFound, "volume %q, which %s knows as %q, was deregistered", v.VolumeID, v.Runtime, name).
				WithHint("register it again (%s), or: %s", "volctl volume register FILE", suggest.Command("%s volume rm %s", v.Runtime, name))
		}
		of = r.Volume
	}

	v, ok, err := s.change(ctx, from.Runtime, name, func(v volume.RuntimeVolume) volume.RuntimeVolume {
		return v.Mounting(id, from.Process, s.now())
	})
	switch {
	case err != nil:
		return v, of, 0, err
	case !ok:
		return v, of, 0, volume.Errorf(volume.ErrRefused, "volume %q was removed meanwhile", name)
	}

	return v, of, s.activity.addMount(v.Key(), id, s.now()), nil
}

// Unmount decreases the count of a reference. If no reference needs the claim afterwards, the agent
// detaches the claim. If the volume is not unmounted before the runtime times out, Unmount returns
// and the agent continues in the background.
func (s *Service) Unmount(ctx context.Context, from Caller, name, id string) error {
	v, ok := s.named(from, name)
	if !ok {
		return nil
	}

	gone, err := s.giveBack(ctx, from.Runtime, name, func(v volume.RuntimeVolume) volume.RuntimeVolume {
		return v.Unmounting(id, from.Process)
	})
	if err != nil {
		return err
	}

	wait, cancel := context.WithTimeout(ctx, s.Patience(from.Runtime).Short)
	defer cancel()

	for _, c := range gone {
		if err := s.Claims.Freed(wait, v.VolumeID, c); err != nil && !errors.Is(context.Cause(ctx), volume.ErrStopping) {
			s.Log.Warn("the volume is detached but still mounted; the agent keeps unmounting it", "runtime", from.Runtime, "volume", v.VolumeID, "error", err)
		}
	}

	return nil
}
