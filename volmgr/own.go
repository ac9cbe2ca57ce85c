package volmgr

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"syscall"

	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// own sets the owner and mode of the volume's root to those that the claim requests. If the storage
// refuses the change, the agent does not retry. If the storage refuses the default owner, the agent
// mounts the claim without the default owner, because the claim did not request it.
func (s step) own() volume.Outcome {
	asked := s.claim().Own.Here()
	out, err := s.give(asked)
	var refused syscall.Errno
	if !asked.Default || !errors.As(err, &refused) {
		return out
	}

	explicit := asked.Explicit()
	out = volume.Outcome{}
	if explicit.Asked() {
		out, _ = s.give(explicit)
	}
	out.Warning = fmt.Sprintf("the root keeps its owner, and root in a container of docker's may be unable to write: %v", err)
	return out
}

// give sets the owner and mode of the volume's root. The returned error is the cause of the error
// in the outcome.
func (s step) give(o volume.Ownership) (volume.Outcome, error) {
	want, err := ownership(o)
	if err != nil {
		return s.changeFirst(err), err
	}

	err = s.m.o.Host.Own(s.ctx, s.a.Path, want, func(files int) {
		volume.Progress(s.ctx, fmt.Sprintf("%d files", files))
	})

	out := s.outcome(err)
	switch {
	case err == nil:
	case errors.Is(err, context.Canceled):
		out.Unsent, out.Err.Code = true, volume.CodeCanceled
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.EOPNOTSUPP),
		errors.Is(err, syscall.EINVAL):
		out.Err.Retry = volume.RetryChange
	}

	return out, err
}

// ownership parses the numbers of an ownership. The agent has already checked them when the claim
// was made.
func ownership(o volume.Ownership) (mount.Ownership, error) {
	want := mount.Ownership{Recursive: o.Recursive, Default: o.Default}
	for _, f := range []struct {
		text string
		base int
		into **uint32
	}{{o.UID, 10, &want.UID}, {o.GID, 10, &want.GID}, {o.Mode, 8, &want.Mode}} {
		if f.text == "" {
			continue
		}
		n, err := strconv.ParseUint(f.text, f.base, 32)
		if err != nil {
			return want, fmt.Errorf("the claim asks for %s: %w", o, err)
		}
		*f.into = new(uint32(n))
	}

	return want, nil
}
