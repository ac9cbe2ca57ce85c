package mount

import (
	"slices"
	"time"
)

// A goroutine that has made a call waits for the next one, because a new goroutine would have to
// grow its stack first. After lingerFor without a call, or up to twice as long, it ends. An idle
// host therefore has none.
const (
	lingerMost = 16
	lingerFor  = time.Second
)

// crew holds the waiting goroutines, each as its channel. The caller of its methods holds the
// gate's lock.
type crew struct {
	idle  []chan job // a stack: the last to finish is the first to get a call
	spare int        // the number of goroutines at the bottom of idle without a call since the last sweep
	timer *time.Timer
	armed bool
}

// take returns a waiting goroutine, which must get a call, or nil.
func (c *crew) take() chan job {
	last := len(c.idle) - 1
	if last < 0 {
		return nil
	}

	next := c.idle[last]
	c.idle[last] = nil
	c.idle = c.idle[:last]
	c.spare = min(c.spare, last)

	return next
}

// add keeps a goroutine that has finished its call, unless there are enough. While any are kept, a
// timer calls sweep.
func (c *crew) add(next chan job, sweep func()) bool {
	if len(c.idle) >= lingerMost {
		return false
	}

	c.idle = append(c.idle, next)
	if c.armed {
		return true
	}

	c.armed, c.spare = true, len(c.idle)
	if c.timer == nil {
		c.timer = time.AfterFunc(lingerFor, sweep)
	} else {
		c.timer.Reset(lingerFor)
	}

	return true
}

// dismiss returns the goroutines without a call since the last time. The caller must close their
// channels.
func (c *crew) dismiss() []chan job {
	gone := slices.Clone(c.idle[:c.spare])
	c.idle = slices.Delete(c.idle, 0, c.spare)
	c.spare = len(c.idle)
	if c.armed = c.spare > 0; c.armed {
		c.timer.Reset(lingerFor)
	}
	return gone
}
