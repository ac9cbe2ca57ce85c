package claim

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/volagent/volagent/volmgr/volume"
)

// borrowDescriptor keeps the caller's file descriptor of the own directory until giveBack is
// called.
func (s *Service) borrowDescriptor(req request) (giveBack func(), err error) {
	switch {
	case req.AtFD == nil:
		return func() {}, nil
	case s.Places == nil || !req.Waits || req.At == "":
		return nil, volume.Errorf(volume.ErrInvalid, "at_fd needs at and a request that waits")
	}

	return s.Places.Lend(req.Volume, req.Alloc, req.At, *req.AtFD)
}

func checkAt(req *request, private []string) error {
	switch {
	case req.At == "" && req.Owner.Kind == volume.OwnerMount:
		return volume.Errorf(volume.ErrInvalid, "a claim that a mount owns needs the directory (at) of the mount")
	case req.At == "" && req.AtFlags != "":
		return volume.Errorf(volume.ErrInvalid, "mount options (at_flags) need the directory (at) at which the volume is bound")
	case req.At == "":
		return nil
	}

	clean := filepath.Clean(req.At)
	within := func(dir, path string) bool {
		return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
	}
	if !filepath.IsAbs(req.At) {
		return volume.Errorf(volume.ErrInvalid, "%q is not an absolute path", req.At)
	}

	for _, dir := range private {
		if within(dir, clean) || within(clean, dir) {
			return volume.Errorf(volume.ErrInvalid, "%s cannot be a mount point: it would hide or lie in the agent's own %s", clean, dir)
		}
	}

	req.At = clean
	return nil
}

// markGuard marks the own directory of the claim as guarded, so that it refuses writes while no
// volume is mounted on it. It does so only if the directory and the request permit it. For a claim
// that already exists and stays, markGuard keeps the earlier decision.
func (s *Service) markGuard(ctx context.Context, req *request) {
	if s.Places == nil || req.At == "" || req.AtWritable {
		return
	}
	if _, c, err := s.findClaim(req.Volume, req.Alloc); err != nil || !c.Wanted || c.At != req.At || ownerEnded(s.Owners, c) {
		req.Guard = s.Places.Guardable(ctx, req.Volume, req.Alloc, req.At)
	}
}
