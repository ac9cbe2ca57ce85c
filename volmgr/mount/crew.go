package mount

import (
	"slices"
	"time"
)

// After a call, its goroutine waits for another call, because a new goroutine would first have to
// grow its stack. A goroutine that gets no call for lingerFor ends within twice that time. An idle
// host therefore has no waiting goroutines. At most lingerMost goroutines wait.
const (
	lingerMost = 16
	lingerFor  = time.Second
)

// crew holds the waiting goroutines. Each goroutine is represented by the channel on which it
// receives its next call. Callers of the methods must hold the gate's lock.
type crew struct {
	idle  []chan job // a stack: the goroutine that finished last gets the next call
	spare int        // goroutines at the bottom of the stack without a call since the last dismiss
	timer *time.Timer
	armed bool
}

// take removes a waiting goroutine from the crew and returns its channel. It returns nil if no
// goroutine waits. The caller must send a call to the channel.
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

// add puts a goroutine that has finished its call into the crew, and reports whether there was
// room. While goroutines wait, a timer calls sweep.
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

// dismiss removes the goroutines that got no call since the last call of dismiss, and returns their
// channels. The caller must close the channels.
func (c *crew) dismiss() []chan job {
	gone := slices.Clone(c.idle[:c.spare])
	c.idle = slices.Delete(c.idle, 0, c.spare)
	c.spare = len(c.idle)
	if c.armed = c.spare > 0; c.armed {
		c.timer.Reset(lingerFor)
	}
	return gone
}
