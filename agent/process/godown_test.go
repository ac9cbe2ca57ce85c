package process

import (
	"context"
	"errors"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/volume"
)

// host is a fake host with one volume that stays mounted. The field down states whether the host is
// shutting down.
type host struct {
	down    bool
	err     error
	ended   map[string]bool // by plugin id: End may end the plugin
	stopped bool
}

func (h *host) GoesDown(context.Context) (bool, error) { return h.down, h.err }

func (h *host) GoDown(context.Context) []volume.Record {
	h.stopped = true
	return []volume.Record{{Volume: volume.Volume{ID: "busy"}}}
}

func (*host) Last(volume.Record) *volume.Attempt { return nil }

func (h *host) End(_ context.Context, used func(string) bool) {
	for id := range h.ended {
		h.ended[id] = !used(id)
	}
}

func shutdown(h *host) *Shutdown {
	return &Shutdown{
		Systemd: h, Queue: h, Plugins: h, Events: func(...volume.Event) {}, Down: make(chan struct{}), Log: hclog.NewNullLogger(),
		Records: func() []volume.Record {
			return []volume.Record{
				{Volume: volume.Volume{ID: "busy", PluginID: "used"}, Node: volume.NodeSide{Staged: volume.Present}},
				{Volume: volume.Volume{ID: "idle", PluginID: "unused"}},
			}
		},
	}
}

// TestComing checks that Coming returns true only if systemd answers that the host is shutting
// down. A halted agent must not ask systemd.
func TestComing(t *testing.T) {
	for _, tt := range []struct {
		name string
		host host
		halt string
		want bool
	}{
		{"a shutdown", host{down: true}, "", true},
		{"a stop of the agent", host{}, "", false},
		{"no answer", host{err: errors.New("no bus")}, "", false},
		{"a halted agent", host{down: true}, "another namespace", false},
	} {
		s := shutdown(&tt.host)
		s.Halt = tt.halt
		if got := s.Coming(); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.name, got, tt.want)
		}
	}
}

// TestShutdown checks that claims are refused before volumes are unmounted, and that only plugins
// without mounted volumes end.
func TestShutdown(t *testing.T) {
	h := &host{ended: map[string]bool{"used": false, "unused": false}}
	s := shutdown(h)
	s.Unmount()
	select {
	case <-s.Down:
	default:
		t.Error("claims are still admitted")
	}
	if !h.stopped {
		t.Error("the queue was not told")
	}
	s.EndPlugins()
	if h.ended["used"] || !h.ended["unused"] {
		t.Errorf("ended: %v", h.ended)
	}
}
