package dockervol

import (
	"context"
	"errors"
	"time"

	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// settleWithin limits the commits that must happen even if the caller has disconnected.
const settleWithin = 10 * time.Second

// maxRef limits a runtime's id for a use of a volume, in bytes. The ids of docker and podman have
// 64 bytes.
const maxRef = 256

// Mount mounts a volume for a reference and returns the path. It answers before the runtime loses
// its patience. If the volume is not mounted by then, it returns the reason and withdraws the
// request. Another Mount for the same id gets the same answer and counts once more.
func (s *Service) Mount(ctx context.Context, from Caller, name, id string) (string, error) {
	switch {
	case id == "":
		return "", volume.Errorf(volume.ErrInvalid, "%s sent no id to mount volume %q for", from.Runtime, name)
	case len(id) > maxRef:
		return "", volume.Errorf(volume.ErrInvalid, "%s mounts volume %q for an id of %d bytes; at most %d are allowed", from.Runtime, name, len(id), maxRef)
	}

	began := time.Now()
	defer s.inHand(from.Runtime)()

	v, of, turn, err := s.refer(ctx, from, name, id)
	if err != nil {
		return "", err
	}
	defer s.answered(v.Key(), id)
	ref, _ := v.Ref(id)

	// The time spent so far counts against the runtime's patience.
	wait := s.Patience(from.Runtime).Long - time.Since(began)
	_, c, err := s.Claims.Claim(ctx, v.VolumeID, v.Request(ref.Alloc, of), max(wait, time.Second))
	if err == nil {
		return c.Path(), nil
	}

	stopping := errors.Is(context.Cause(ctx), volume.ErrStopping)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
	defer cancel()

	if failed := s.withdraw(ctx, from, v, id, turn, stopping); failed != nil {
		s.Log.Warn("cannot withdraw a reference of a container that was not started; it is dropped once no container uses the volume",
			"runtime", from.Runtime, "volume", name, "error", failed)
	}
	return "", err
}

// withdraw undoes a Mount that failed, because the runtime never sends an Unmount for it. If the
// agent is stopping, the runtime sends the Mount again to the next agent, so the claim stays.
func (s *Service) withdraw(ctx context.Context, from Caller, v volume.RuntimeVolume, id string, turn uint64, stopping bool) error {
	uncount := func(v volume.RuntimeVolume) volume.RuntimeVolume {
		// Podman's Mounts are not counted: a later one for the same id stands for all.
		if from.Runtime == volume.RuntimePodman && s.heard(v.Key(), id).turn != turn {
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

// inHand counts a running Mount. The runtime is about to start a container, and until the container
// shows, no reference counts as leaked.
func (s *Service) inHand(runtime string) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.mounting == nil {
		s.mounting = map[string]int{}
	}
	s.mounting[runtime]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()

		s.mounting[runtime]--
	}
}

// refer counts a Mount. The count is on disk before the agent makes the claim. If the agent does
// not know a name that the runtime knows, the name stands for the volume with that id, because
// podman never sends Create again.
func (s *Service) refer(ctx context.Context, from Caller, name, id string) (v volume.RuntimeVolume, of volume.Volume, turn uint64, err error) {
	if _, ok := s.Store.RuntimeVolume(from.Runtime, name); !ok {
		if err := s.Create(ctx, from, name, nil); err != nil {
			return v, of, 0, err
		}
	}

	release, err := s.locks.hold(ctx, volume.RuntimeKey(from.Runtime, name))
	if err != nil {
		return v, of, 0, err
	}
	defer release()
	if v, ok := s.Store.RuntimeVolume(from.Runtime, name); ok {
		r, ok := s.Store.Volume(v.VolumeID)
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

	return v, of, s.mounts(v.Key(), id), nil
}

// Unmount removes one Mount from the count of a reference. If no reference needs a claim
// afterwards, the agent detaches the claim. The detach continues after the runtime's patience ends.
func (s *Service) Unmount(ctx context.Context, from Caller, name, id string) error {
	v, ok := s.Store.RuntimeVolume(from.Runtime, name)
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
