package hold

import (
	"context"
	"fmt"
	"testing"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestCancelled checks that a step that was cancelled does not show the cluster as unreachable, and that
// a deadline does.
func TestCancelled(t *testing.T) {
	told := 0
	s := New(Options{Endpoints: etcd, Records: noRecords{}, Events: func(...volume.Event) { told++ }})
	s.away = ""
	for _, c := range []struct {
		cause error
		away  bool
	}{
		{context.Canceled, false},
		{context.DeadlineExceeded, true},
	} {
		s.noteError(fmt.Errorf("%w (%w)", shared.ErrUnknownOutcome, c.cause))
		if away := s.Cluster(volume.Record{}).Away != ""; away != c.away || told > 0 != c.away {
			t.Errorf("after %v, the cluster is away: %t, with %d events", c.cause, away, told)
		}
	}
}

// etcd returns the address of the store in the messages of these tests.
func etcd() string { return "memory" }
