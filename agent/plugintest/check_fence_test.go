package plugintest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
)

// lister is a plugin that lists the nodes of a volume.
type lister struct {
	Plugins
	call.Handlers
}

func (l lister) Tested(string) (Plugin, error)             { return l, nil }
func (l lister) Probe(context.Context) (bool, error)       { return true, nil }
func (l lister) Info(context.Context) (plugin.Info, error) { return plugin.Info{}, nil }

// TestJudgeList checks the verdict about a detach after which the host cannot write. It depends on the
// nodes that the plugin lists then.
func TestJudgeList(t *testing.T) {
	for _, tt := range []struct {
		name  string
		caps  plugin.Caps
		nodes []string
		err   error
		want  Verdict
		said  string
	}{
		{"no list", plugin.Caps{List: true}, []string{"here"}, nil, OK, "a write fails (EIO)"},
		{"detached", plugin.Caps{List: true, PublishedNodes: true}, []string{"there"}, nil, OK, "no longer lists this host"},
		{"still listed", plugin.Caps{List: true, PublishedNodes: true}, []string{"there", "here"}, nil, Broken, "still lists this host"},
		{"one volume, detached", plugin.Caps{Get: true, PublishedNodes: true}, nil, nil, OK, "no longer lists this host"},
		{"one volume, still listed", plugin.Caps{Get: true, PublishedNodes: true}, []string{"here"}, nil, Broken, "still lists this host"},
		{"no answer", plugin.Caps{Get: true, PublishedNodes: true}, nil, errors.New("no answer"), Broken, "cannot list the nodes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := call.Handlers{}
			one := call.StorageVolume{ExternalID: "vol", PublishedNodes: tt.nodes}
			call.HandleDo(h, func(context.Context, call.GetVolumeRequest) (call.StorageVolume, error) { return one, tt.err })
			call.HandleDo(h, func(_ context.Context, r call.ListVolumesRequest) (call.VolumePage, error) {
				if r.Token == "" {
					return call.VolumePage{Next: "2"}, nil // the volume is on the second page
				}
				return call.VolumePage{Entries: []call.StorageVolume{one}}, tt.err
			})

			r := &run{s: &Service{Plugins: lister{Handlers: h}}, info: plugin.Info{NodeID: "here", Caps: tt.caps}, vol: plugin.ScratchVolume{ExternalID: "vol"}}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if f := r.judgeList(ctx, errors.New("EIO")); f.verdict != tt.want || !strings.Contains(f.said, tt.said) {
				t.Errorf("%+v, want %s: %s", f, tt.want, tt.said)
			}
		})
	}
}

// TestWriter checks that the writer reports each write, and that its end is no failed write.
func TestWriter(t *testing.T) {
	w, err := startWriter(t.Context(), filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := w.write(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	if err := w.write(t.Context()); !errors.Is(err, errNoWriter) {
		t.Errorf("after the end: %v", err)
	}

	full, err := startWriter(t.Context(), "/dev/full")
	if err != nil {
		t.Fatal(err)
	}
	if err := full.write(t.Context()); err == nil || errors.Is(err, errNoWriter) || !strings.Contains(fmt.Sprint(err), "No space left") {
		t.Errorf("on a full device: %v", err)
	}
	if err := full.stop(); err != nil {
		t.Error(err)
	}
}
