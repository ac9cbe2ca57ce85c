package dockervol

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// settleWithin bounds what has to be written although the caller may be gone.
const settleWithin = 10 * time.Second

// maxRef bounds a runtime's id for a use of a volume, in bytes; those of docker and podman
// have 64.
const maxRef = 256

// Mount has a volume mounted for a reference, and returns where. It answers within the
// runtime's patience: with the reason, if the mount is not there by then, and then
// nothing is left of the request. The same id again gets the same answer.
func (s *Service) Mount(ctx context.Context, runtime, name, id string) (string, error) {
	switch {
	case id == "":
		return "", volume.Errorf(volume.ErrInvalid, "%s names nobody to mount volume %q for", runtime, name)
	case len(id) > maxRef:
		return "", volume.Errorf(volume.ErrInvalid, "%s mounts volume %q for an id of %d bytes; at most %d are allowed", runtime, name, len(id), maxRef)
	}
	began := time.Now()
	defer s.inHand(runtime)()
	v, had, turn, err := s.refer(ctx, runtime, name, id)
	if err != nil {
		return "", err
	}
	defer s.answered(v.Key(), id)
	ref, _ := v.Ref(id)
	// What was waited for so far is the runtime's time too.
	wait := s.Patience(runtime).Long - time.Since(began)
	_, c, err := s.Claims.Claim(ctx, v.VolumeID, v.Request(ref.Alloc), max(wait, time.Second))
	switch {
	case err == nil:
		return c.Path(), nil
	case errors.Is(context.Cause(ctx), volume.ErrStopping):
		return "", err // the runtime asks the next agent, which goes on with it
	case had:
		return "", err // somebody was told that it is mounted
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
	defer cancel()
	// Whoever asked again for the same id decides for himself: podman has one for all.
	inVain := func(r volume.RuntimeRef) bool { return r.ID == id && s.heard(v.Key(), id).turn == turn }
	if _, dropped := s.unrefer(ctx, runtime, name, inVain); dropped != nil {
		s.Log.Warn("a reference of a container that was not started stays, until it is seen that nobody uses it", "runtime", runtime, "volume", name, "error", dropped)
	}
	return "", err
}

// inHand counts a call of Mount: a container is about to be started, and until that shows
// nobody is taken for gone.
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

// refer adds a reference, on disk before anything is done for it. A name that the runtime
// has and this agent has lost is taken for the volume with that id: podman never asks to
// have it created again.
func (s *Service) refer(ctx context.Context, runtime, name, id string) (v volume.RuntimeVolume, had bool, turn uint64, err error) {
	if _, ok := s.Store.RuntimeVolume(runtime, name); !ok {
		if err := s.Create(ctx, runtime, name, nil); err != nil {
			return v, false, 0, err
		}
	}
	release, err := s.locks.hold(ctx, volume.RuntimeKey(runtime, name))
	if err != nil {
		return v, false, 0, err
	}
	defer release()
	v, ok, err := s.change(ctx, runtime, name, func(v volume.RuntimeVolume) volume.RuntimeVolume {
		_, had = v.Ref(id)
		return v.Referring(id, s.now())
	})
	switch {
	case err != nil:
		return v, had, 0, err
	case !ok:
		return v, had, 0, volume.Errorf(volume.ErrRefused, "volume %q was removed meanwhile", name)
	}
	if _, ok := s.Store.Volume(v.VolumeID); !ok && !had {
		_, _, err = s.change(ctx, runtime, name, func(v volume.RuntimeVolume) volume.RuntimeVolume {
			return v.Without(func(r volume.RuntimeRef) bool { return r.ID == id })
		})
		return v, had, 0, errors.Join(volume.Errorf(volume.ErrNotFound, "volume %q, which %s knows as %q, was deregistered", v.VolumeID, runtime, name).
			WithHint("register it again (%s), or: %s", "volctl volume register FILE", volume.Command("%s volume rm %s", runtime, name)), err)
	}
	return v, had, s.mounts(v.Key(), id), nil
}

// Unmount gives a reference back; with the last one the claim goes. An id that is not
// known was given back before: runtimes ask again. A release that takes longer than the
// runtime waits goes on by itself.
func (s *Service) Unmount(ctx context.Context, runtime, name, id string) error {
	v, ok := s.Store.RuntimeVolume(runtime, name)
	if !ok {
		return nil
	}
	gone, err := s.unrefer(ctx, runtime, name, func(r volume.RuntimeRef) bool { return r.ID == id })
	if err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, s.Patience(runtime).Short)
	defer cancel()
	for _, c := range gone {
		if err := s.Claims.Freed(wait, v.VolumeID, c); err != nil && !errors.Is(context.Cause(ctx), volume.ErrStopping) {
			s.Log.Warn("a volume is released and not unmounted yet; that goes on by itself", "runtime", runtime, "volume", v.VolumeID, "error", err)
		}
	}
	return nil
}

// unrefer drops references, and releases the claims that no other one needs. Both are on
// disk when it returns. It returns the claims that are on their way out.
func (s *Service) unrefer(ctx context.Context, runtime, name string, drop func(volume.RuntimeRef) bool) (gone []volume.Claim, err error) {
	release, err := s.locks.hold(ctx, volume.RuntimeKey(runtime, name))
	if err != nil {
		return nil, err
	}
	defer release()
	v, ok, err := s.change(ctx, runtime, name, func(v volume.RuntimeVolume) volume.RuntimeVolume { return v.Without(drop) })
	if err != nil || !ok {
		return nil, err
	}
	s.forget(v)
	return s.settle(ctx, v)
}

// settle releases a volume's claims that no reference needs; the name's lock is held.
func (s *Service) settle(ctx context.Context, v volume.RuntimeVolume) (gone []volume.Claim, err error) {
	r, ok := s.Store.Volume(v.VolumeID)
	if !ok {
		return nil, nil
	}
	for _, c := range r.Ordered() {
		if c.Owner != v.Owner() || v.Claimed(c.Alloc) {
			continue
		}
		if c.Wanted {
			if err := s.Claims.Drop(ctx, v.VolumeID, c); err != nil {
				return gone, fmt.Errorf("cannot release volume %q: %w", v.VolumeID, err)
			}
		}
		gone = append(gone, c)
	}
	return gone, nil
}
