package hold

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/volagent/volagent/volmgr/backoff"
	"github.com/volagent/volagent/volmgr/shared"
)

// publisher shows the plugins and the status of this host to the other hosts.
type publisher struct {
	*ownHolds

	plugins chan struct{} // asks for another write of the plugins
	changed chan struct{} // asks for a new status
}

// publishInfo describes the plugins of this host to the other hosts, at once and after each change,
// until ctx ends. It ends the registration with refuse if a plugin that answers only now has another CSI
// node id than before.
func (s *publisher) publishInfo(ctx context.Context, refuse context.CancelCauseFunc) {
	written := []byte(nil)
	for ctx.Err() == nil {
		earlier, err := s.earlierInfo(ctx)
		if err != nil {
			s.Log.Warn("cannot read the plugins of this host in the cluster; it is tried again", "error", err)
			backoff.Pause(ctx, renewEvery)
			continue
		}

		info, shown := s.Info(), s.Info() // Keeping changes the first one
		held, err := s.heldAs(ctx)
		if err == nil {
			err = shared.CheckNodeIDs(s.Node, info, held)
		}
		if errors.Is(err, shared.ErrNodeIDMoved) {
			refuse(err)
			return
		}
		if err != nil {
			s.Log.Warn("cannot compare the CSI node ids of this host; it is tried again", "error", err)
			backoff.Pause(ctx, renewEvery)
			continue
		}

		raw := earlier.Encode(info.Keeping(earlier.Value))
		if !bytes.Equal(raw, written) {
			err := s.describe(ctx, raw)
			if err != nil && ctx.Err() == nil {
				s.Log.Warn("cannot write the plugins of this host to the cluster; it is tried again", "error", err)
				backoff.Pause(ctx, renewEvery)
				continue
			}
			written = raw
		}

		s.awaitInfo(ctx, shown)
	}
}

// infoEvery is the pause between two looks at the facts about this host of which no event tells, such as its
// fence hooks.
const infoEvery = 30 * time.Second

// awaitInfo waits until the plugins of this host change, or something else that it shows to the other hosts. An
// idle host makes no request for that.
func (s *publisher) awaitInfo(ctx context.Context, shown shared.NodeInfo) {
	for look := time.NewTicker(infoEvery); ; {
		select {
		case <-ctx.Done():
		case <-s.plugins:
		case <-look.C:
			if reflect.DeepEqual(s.Info(), shown) {
				continue
			}
		}
		look.Stop()
		return
	}
}

// describe writes the plugins of this host to the cluster.
func (s *publisher) describe(ctx context.Context, info []byte) error {
	who, err := s.Asker()
	if err != nil {
		return err
	}
	a, err := s.readArrival(ctx)
	if err != nil {
		return err
	}
	txn, err := a.Describe(who, info)
	if err != nil {
		return err
	}
	res, err := s.Store.Do(ctx, txn)
	if err == nil && !res.Done {
		err = errors.New("the registration of this host has changed meanwhile")
	}
	return err
}

// pluginsChanged asks for another write of the plugins.
func (s *publisher) pluginsChanged() {
	select {
	case s.plugins <- struct{}{}:
	default: // the last request has not been seen yet
	}
}
