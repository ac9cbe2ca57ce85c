package reconcile

import (
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// TestNextDue: a step that is due, and that something else holds up, sets no
// timer: it would fire at once, again and again.
func TestNextDue(t *testing.T) {
	now := time.Now()
	e := newEntry()
	for i, next := range []time.Time{{}, now.Add(-time.Second), now, now.Add(time.Hour), now.Add(time.Minute)} {
		e.failed[string(rune('a'+i))] = &volume.Attempt{Next: next}
	}
	if got := e.nextDue(now); !got.Equal(now.Add(time.Minute)) {
		t.Errorf("next due in %s", got.Sub(now))
	}
	e.due(false)
	if got := e.nextDue(now); !got.IsZero() {
		t.Errorf("all are due, and the timer is set to %s", got)
	}
}
