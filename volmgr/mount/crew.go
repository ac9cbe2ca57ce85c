package mount

import (
	"slices"
	"time"
)

// A goroutine that has made a call lingers for the next one, because a new one
// would have to grow its stack first. Those that no call took for lingerFor, or
// up to twice as long, are let go: an idle host has none.
const (
	lingerMost = 16
	lingerFor  = time.Second
)

// crew is the goroutines that linger, each as the channel it waits at. The
// gate's lock is held around its methods.
type crew struct {
	idle  []chan job // the last to finish is the last, and the first to be taken
	spare int        // how many of idle, from the first, no call took since the last sweep
	timer *time.Timer
	armed bool
}

// take returns an idle one, which must be given a call, or nil.
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

// add keeps one that finished its call, unless there are enough. Sweep is
// called while there are any.
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

// dismiss returns those that no call took since the last time; their channels
// are to be closed.
func (c *crew) dismiss() []chan job {
	gone := slices.Clone(c.idle[:c.spare])
	c.idle = slices.Delete(c.idle, 0, c.spare)
	c.spare = len(c.idle)
	if c.armed = c.spare > 0; c.armed {
		c.timer.Reset(lingerFor)
	}
	return gone
}
