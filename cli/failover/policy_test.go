package failover

import (
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// TestStandby checks when a waiting host claims the volume. The most preferred host claims it also while
// another host holds it. Each other host waits for a free volume, and then for its turn.
func TestStandby(t *testing.T) {
	const s = time.Second
	for _, tt := range []struct {
		name   string
		now    standby
		claims bool
		reason string
	}{
		{"no order", standby{}, true, ""},
		{"the first host, while another one holds the volume", standby{holder: "h2"}, true, ""},
		{"paused", standby{paused: true}, false, "paused by an administrator"},
		{"paused and draining", standby{paused: true, draining: true}, false, "paused by an administrator"},
		{"draining", standby{draining: true}, false, "this host is draining"},
		{"the first host after a failure", standby{backOff: 15 * s}, false, "other hosts go first, for 15s"},
		{"the volume is moved to the second host", standby{rank: 1, delay: 10 * s, backOff: s, holder: "h1", chosen: true}, true, ""},
		{"the volume is moved to a paused host", standby{paused: true, chosen: true}, false, "paused by an administrator"},
		{"the second host, while another one holds the volume", standby{rank: 1, delay: 10 * s, holder: "h1", vacant: 99 * s}, false, `host "h1" holds the volume`},
		{"the second host, and the volume has just become free", standby{rank: 1, delay: 10 * s}, false, "preferred hosts go first, for 10s"},
		{"the second host, before its turn", standby{rank: 1, delay: 10 * s, vacant: 9 * s}, false, "preferred hosts go first, for 1s"},
		{"the second host, in its turn", standby{rank: 1, delay: 10 * s, vacant: 10 * s}, true, ""},
		{"the third host, in the turn of the second", standby{rank: 2, delay: 10 * s, vacant: 10 * s}, false, "preferred hosts go first, for 10s"},
		{"the last of many hosts waits a limited time", standby{rank: 99, delay: 10 * s, vacant: maxDelay}, true, ""},
		{"the last of many hosts, before", standby{rank: 99, delay: 10 * s, vacant: maxDelay - s}, false, "preferred hosts go first, for 1s"},
	} {
		if claims, reason := tt.now.next(); claims != tt.claims || reason != tt.reason {
			t.Errorf("%s: claims %v, %q; want %v, %q", tt.name, claims, reason, tt.claims, tt.reason)
		}
	}
}

// TestYield checks that a host waits until each less preferred host had its turn.
func TestYield(t *testing.T) {
	const s = time.Second
	for _, tt := range []struct {
		prefer []string
		delay  time.Duration
		want   time.Duration
	}{
		{nil, 10 * s, 15 * s},
		{[]string{"h1", "h2", "h3"}, 10 * s, 35 * s},
		{[]string{"h1", "h2", "h3"}, time.Minute, 75 * s},
	} {
		yield := yieldOf(tt.prefer, tt.delay)
		if yield != tt.want || turnOf(len(tt.prefer)-1, tt.delay) >= yield || pause(manyFailures, yield) < yield {
			t.Errorf("with the order %v and %s, a host waits %s, want %s", tt.prefer, tt.delay, yield, tt.want)
		}
	}
}

func TestRank(t *testing.T) {
	for _, tt := range []struct {
		host   string
		prefer []string
		want   int
	}{
		{"h1", nil, 0},
		{"h1", []string{"h1", "h2"}, 0},
		{"h2", []string{"h1", "h2"}, 1},
		{"h3", []string{"h1", "h2"}, 2},
	} {
		if got := rankOf(tt.host, tt.prefer); got != tt.want {
			t.Errorf("host %s in %v has rank %d, want %d", tt.host, tt.prefer, got, tt.want)
		}
	}
}

// TestLiveHolder checks which holders keep a less preferred host from claiming the volume.
func TestLiveHolder(t *testing.T) {
	for state, live := range map[string]bool{
		api.HostReady: true, api.HostDraining: true, api.HostAway: true, "": true,
		api.HostGone: false, api.HostFencing: false, api.HostFenced: false,
	} {
		holds := []api.Hold{{Host: "self", HostState: api.HostReady}, {Host: "h1", HostState: state}}
		if got := liveHolder(holds, "self"); (got == "h1") != live {
			t.Errorf("holder in state %q: %q, want live %v", state, got, live)
		}
	}
}

// TestActive checks why a host gives the volume up. The loss of the volume is the first reason.
func TestActive(t *testing.T) {
	for _, tt := range []struct {
		now  active
		want end
	}{
		{active{}, keep},
		{active{service: serviceUnknown}, keep},
		{active{service: serviceEnded}, endStopped},
		{active{service: serviceFailed}, endFailed},
		{active{draining: true, service: serviceFailed}, endDraining},
		{active{paused: true, draining: true}, endPaused},
		{active{moving: true, service: serviceFailed}, endMoving},
		{active{lost: true, paused: true, service: serviceFailed}, endLost},
	} {
		if got := tt.now.next(); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.now, got, tt.want)
		}
	}
}

// TestBackOff checks how long a host lets the other hosts go first. The waits grow with the failures,
// and never exceed the limit, also if the clock jumps.
func TestBackOff(t *testing.T) {
	now := time.Date(2026, 3, 10, 3, 12, 11, 0, time.UTC)
	var r record
	if r = r.after(endPaused, now, yieldFor).after(endLost, now, yieldFor).after(endDraining, now, yieldFor); r != (record{}) {
		t.Errorf("the host waits after an end that is no failure: %+v", r)
	}
	if r = r.after(endStopped, now, yieldFor); r.backOff(now, yieldFor) != yieldFor || r.Failures != 0 {
		t.Errorf("after a stop: %+v", r)
	}

	r = record{}
	for i, want := range []time.Duration{yieldFor, yieldFor, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute, 16 * time.Minute} {
		r = r.after(endFailed, now, yieldFor)
		if got := r.backOff(now, yieldFor); got != want {
			t.Errorf("after %d failures the host waits %s, want %s", i+1, got, want)
		}
		if r.backOff(now.Add(want), yieldFor) != 0 {
			t.Errorf("after %d failures the wait does not end", i+1)
		}
		now = now.Add(want + healthy)
	}
	if got := r.backOff(now.Add(-1000*time.Hour), yieldFor); got != maxPause {
		t.Errorf("after a jump of the clock the host waits %s", got)
	}
	if r = r.after(endFailed, now.Add(maxPause+time.Second), yieldFor); r.Failures != 1 {
		t.Errorf("after a healthy time there are %d failures", r.Failures)
	}
}

func TestParseService(t *testing.T) {
	for out, want := range map[string]serviceState{
		"ActiveState=active\n":             serviceRuns,
		"ActiveState=activating\n":         serviceRuns,
		"ActiveState=deactivating\n":       serviceRuns,
		"ActiveState=inactive\n":           serviceEnded,
		"ActiveState=failed\nJob=\n":       serviceFailed,
		"Job=17\nActiveState=inactive\n":   serviceRuns,
		"ActiveState=inactive\nJob=0\n":    serviceEnded,
		"":                                 serviceUnknown,
		"Failed to connect to the bus.\n":  serviceUnknown,
		"ActiveState=failed\nJob=12 foo\n": serviceRuns,
	} {
		if got := parseService(out); got != want {
			t.Errorf("%q is state %d, want %d", out, got, want)
		}
	}
}

func TestIsService(t *testing.T) {
	for unit, want := range map[string]bool{
		"web.service": true, "web@1.service": true, `a\x2db.service`: true,
		"": false, "web": false, ".service": false, "@.service": false, "../web.service": false, "a/b.service": false,
		"a b.service": false, "a\nb.service": false, "web.socket": false, "..service": false,
	} {
		if got := isService(unit); got != want {
			t.Errorf("%q: %v, want %v", unit, got, want)
		}
	}
}
