package claim_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/claim"
	"github.com/volagent/volagent/volmgr/volume"
)

// watched extends the fake type people to implement claim.Watcher.
type watched struct {
	*people
	ended chan struct{}
	kept  []volume.Owner
}

func (w *watched) Ended() <-chan struct{} { return w.ended }

func (w *watched) Keep(list func() []volume.Owner) { w.kept = list() }

func (w *world) Volumes() []volume.Record {
	r, ok := w.Volume("data")
	if !ok {
		return nil
	}
	return []volume.Record{r}
}

// TestReaper checks that a pass detaches only the claims whose owners have ended. It also checks
// that the pass reports a detach that it could not store.
func TestReaper(t *testing.T) {
	w, s, p := owned(t)
	owners := &watched{people: p, ended: make(chan struct{}, 1)}
	r := claim.NewReaper(s, w, owners, hclog.NewNullLogger())

	if !r.Pass(t.Context()) || w.claims() != "db" {
		t.Fatalf("the owner lives, and the claims are %q", w.claims())
	}
	if len(owners.kept) != 1 || owners.kept[0].PID != 1 {
		t.Errorf("the watcher keeps %+v", owners.kept)
	}

	p.dies(1, true)
	w.change(func() { w.fail = errors.New("disk full") })
	if r.Pass(t.Context()) {
		t.Error("a detach that could not be stored is reported as stored")
	}
	w.change(func() { w.fail = nil })

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { r.Run(ctx) })
	defer func() { cancel(); wg.Wait() }()
	owners.ended <- struct{}{}
	for end := time.Now().Add(patience); w.claims() == "db"; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the claim of the ended owner stays")
		}
	}
}
