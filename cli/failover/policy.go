package failover

import (
	"fmt"
	"time"
)

// These are the limits of the waits. Every wait ends, so a single host always starts the service again.
const (
	// DefaultDelay is how long each less preferred host waits longer than the one before it.
	DefaultDelay = 10 * time.Second

	// maxDelay is the longest wait of a less preferred host.
	maxDelay = time.Minute

	// yieldFor is how long a host lets the other hosts go first after the service has ended on it. The
	// turns of the less preferred hosts come on top.
	yieldFor = 15 * time.Second

	// manyFailures is the number of failures after which the wait grows. healthy is how long the
	// service must run after the wait, so that an earlier failure does not count.
	manyFailures = 3
	healthy      = 10 * time.Minute

	// firstPause is the wait after manyFailures. Each further failure doubles it, up to maxPause.
	firstPause = time.Minute
	maxPause   = 16 * time.Minute
)

// standby is the knowledge of a host that waits for the volume.
type standby struct {
	paused, draining bool

	// chosen is set if an administrator moves the volume to this host.
	chosen bool

	// backOff is how long the host still lets other hosts go first.
	backOff time.Duration

	// rank is the place of the host in the order of preference. 0 is the most preferred host.
	rank  int
	delay time.Duration

	// holder is another host that holds the volume and may still use it. It is empty if no host
	// holds the volume, or if the holder is gone. vacant is how long that is so.
	holder string
	vacant time.Duration
}

// next reports whether the host claims the volume now, and gives the reason if not. The most preferred
// host claims the volume while another host holds it, so that it gets the volume first.
func (s standby) next() (claim bool, reason string) {
	turn := turnOf(s.rank, s.delay)
	switch {
	case s.paused:
		return false, "paused by an administrator"
	case s.draining:
		return false, "this host is draining"
	case s.chosen:
		return true, ""
	case s.backOff > 0:
		return false, fmt.Sprintf("other hosts go first, for %s", s.backOff.Round(time.Second))
	case s.rank == 0:
		return true, ""
	case s.holder != "":
		return false, fmt.Sprintf("host %q holds the volume", s.holder)
	case s.vacant < turn:
		return false, fmt.Sprintf("preferred hosts go first, for %s", (turn - s.vacant).Round(time.Second))
	default:
		return true, ""
	}
}

// turnOf returns how long a volume must have been free before a host with this rank claims it.
func turnOf(rank int, delay time.Duration) time.Duration {
	return min(time.Duration(rank)*delay, maxDelay)
}

// yieldOf returns how long a host lets the other hosts go first, so that each host of the order gets its
// turn.
func yieldOf(prefer []string, delay time.Duration) time.Duration {
	return yieldFor + turnOf(max(0, len(prefer)-1), delay)
}

// rankOf returns the place of a host in the order of preference. Hosts that are not in the order share
// the last place. Without an order, all hosts share the first place.
func rankOf(host string, prefer []string) int {
	for i, p := range prefer {
		if p == host {
			return i
		}
	}
	return len(prefer)
}

// serviceState is the state of the service, as far as failover needs it.
type serviceState int

const (
	serviceRuns    serviceState = iota // it runs, starts, stops, or has a pending job
	serviceUnknown                     // systemd does not answer
	serviceEnded
	serviceFailed
)

// active is the knowledge of a host that holds the volume.
type active struct {
	paused, draining bool

	// lost is set if the claim has ended. Another host may use the volume. moving is set if an
	// administrator moves the volume to another host.
	lost    bool
	moving  bool
	service serviceState
}

// end is the reason why a host stops the service and gives up the volume.
type end string

// These are the reasons. keep means that the service continues to run.
const (
	keep        end = ""
	endLost     end = "the claim has ended, so another host may use the volume"
	endPaused   end = "paused by an administrator"
	endDraining end = "this host is draining"
	endMoving   end = "an administrator moves the volume"
	endFailed   end = "the service failed"
	endStopped  end = "the service ended"
)

// next decides whether the service continues to run on this host.
func (a active) next() end {
	switch {
	case a.lost:
		return endLost
	case a.paused:
		return endPaused
	case a.draining:
		return endDraining
	case a.moving:
		return endMoving
	case a.service == serviceFailed:
		return endFailed
	case a.service == serviceEnded:
		return endStopped
	default:
		return keep
	}
}

// record is the memory of a host about the service. It lasts from one attempt to the next, also over a boot.
type record struct {
	// Failures counts the failures without a healthy time between them. Last is the time of the
	// last one.
	Failures int       `json:"failures,omitempty"`
	Last     time.Time `json:"last,omitzero"`

	// Until is the time until which this host lets other hosts go first.
	Until time.Time `json:"until,omitzero"`
}

// after returns the record after the service ended on this host. The parameter yield is the shortest
// wait.
func (r record) after(why end, now time.Time, yield time.Duration) record {
	switch why {
	case endStopped:
		r.Until = now.Add(yield)
	case endFailed:
		if since := now.Sub(r.Last); since < 0 || since > healthy+pause(r.Failures, yield) {
			r.Failures = 0
		}
		r.Failures++
		r.Last, r.Until = now, now.Add(pause(r.Failures, yield))
	}
	return r
}

// backOff returns how long this host still lets other hosts go first. The clock may have been changed,
// so backOff is never longer than the wait after that number of failures.
func (r record) backOff(now time.Time, yield time.Duration) time.Duration {
	return max(0, min(r.Until.Sub(now), pause(r.Failures, yield)))
}

// pause returns the wait after a number of failures.
func pause(failures int, yield time.Duration) time.Duration {
	if failures < manyFailures {
		return yield
	}
	wait := firstPause
	for range failures - manyFailures {
		if wait *= 2; wait >= maxPause {
			return maxPause
		}
	}
	return max(wait, yield)
}
