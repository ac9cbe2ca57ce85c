package claim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// withdraw detaches a claim whose wait failed, and mentions the detach in the error. It uses its
// own deadline, because the caller may have cancelled the request.
func (s *Service) withdraw(ctx context.Context, key waitKey, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()

	if _, err := s.endClaim(ctx, key.volume, key.alloc, key.seq, volume.WithPlugin); err != nil && !errors.Is(err, volume.ErrNotFound) {
		return errors.Join(why, fmt.Errorf("cannot withdraw the claim: %w", err))
	}

	s.say(key.volume, key.alloc, "claim-withdrawn", why.Error())
	return &withdrawn{why}
}

// withdrawn is an error with the additional text that the agent has detached the claim.
type withdrawn struct{ error }

func (w *withdrawn) Error() string { return w.error.Error() + "; the claim was withdrawn" }
func (w *withdrawn) Unwrap() error { return w.error }
