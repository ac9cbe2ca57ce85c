package clean

import (
	"context"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
)

// heavy is the part of a pass of the elected host that reads much. When many hosts go at once, each of them
// leads to a pass, and the takeovers must not wait for this part.
type heavy struct{ *Cleaner }

// pass makes the part, unless it was made shortly before. The argument due is the time until the next
// pass, or 0. The result is the same with regard to this part.
func (c heavy) pass(ctx context.Context, who shared.Asker, live map[string]shared.Live, due time.Duration) (time.Duration, error) {
	if wait := c.retry() - time.Since(c.examined); wait > 0 {
		return earlier(due, wait), nil
	}
	c.examined = time.Now()

	if err := c.endTasks(ctx, who); err != nil {
		return due, err
	}
	attachments(c).start(ctx, who, func(string) bool { return true })
	if err := attachments(c).delegate(ctx, live); err != nil {
		return due, err
	}
	c.jobs.start(examining, func() {
		if err := examination(c).examine(ctx); err != nil && ctx.Err() == nil {
			c.Log.Warn("cannot look for keys that contradict each other; a later pass tries again", "error", err)
		}
	})
	return due, nil
}
