package mount

import (
	"slices"
	"time"
)

// A goroutine that has made a call waits for the next call, because a new goroutine would have to
// grow its stack first. After lingerFor without a call, or up to twice as long, the goroutine ends.
// An idle host therefore has no waiting goroutine.
const (
	lingerMost = 16
	lingerFor  = time.Second
)

// crew holds the waiting goroutines. Each is represented by the channel from which it receives its
// next call. The caller of the methods holds the gate's lock.
type crew struct {
	idle  []chan job // a stack: the goroutine that finished last gets the next call
	spare int        // the number of goroutines at the bottom of idle that got no call since the last sweep
	timer *time.Timer
	armed bool
}

// take removes a waiting goroutine from the crew and returns its channel, or nil if no goroutine
// waits. The caller must send a call to the channel.
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

// add keeps a goroutine that has finished its call, unless enough goroutines wait already. As long
// as goroutines wait, a timer calls sweep.
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

// dismiss removes and returns the goroutines that got no call since the last dismiss. The caller
// must close their channels.
func (c *crew) dismiss() []chan job {
	gone := slices.Clone(c.idle[:c.spare])
	c.idle = slices.Delete(c.idle, 0, c.spare)
	c.spare = len(c.idle)
	if c.armed = c.spare > 0; c.armed {
		c.timer.Reset(lingerFor)
	}
	return gone
}
