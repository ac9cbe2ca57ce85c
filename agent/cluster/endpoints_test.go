package cluster_test

import (
	"context"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/cluster"
	"github.com/volagent/volagent/agent/cluster/etcdtest"
	"github.com/volagent/volagent/volmgr/shared"
)

// TestSetEndpoints checks that a store works with a member that it learned while it was open, after the
// only member that it knew before is gone. A watch continues as well.
func TestSetEndpoints(t *testing.T) {
	c := etcdtest.Start(t, 3)
	all := c.Endpoints()
	s := open(t, cluster.Options{Endpoints: all[:1]})
	if err := put(t.Context(), s, "before"); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	seen := make(chan struct{}, 1)
	following := make(chan struct{})
	go func() {
		defer close(following)
		_ = shared.Follow(ctx, s, []shared.Span{{Key: "after"}}, nil, func(u shared.Update) {
			for range u.Changes {
				select {
				case seen <- struct{}{}:
				default:
				}
			}
		})
	}()
	defer func() { cancel(); <-following }()
	for _, wrong := range [][]string{nil, {"10.0.0.1"}, {"https://10.0.0.1:2379"}} {
		if err := s.SetEndpoints(wrong); err == nil {
			t.Errorf("the endpoints %q are accepted", wrong)
		}
	}
	if err := s.SetEndpoints(all[1:]); err != nil {
		t.Fatal(err)
	}
	c.Kill(0)

	var err error
	for ctx.Err() == nil {
		if err = put(ctx, s, "after"); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatalf("with the new endpoints: %v", err)
	}
	select {
	case <-seen:
	case <-ctx.Done():
		t.Fatal("the watch has not seen the key")
	}
}
