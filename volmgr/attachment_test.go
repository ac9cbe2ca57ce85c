package volmgr_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// lister is a plugin that answers OK to ControllerPublish and ControllerUnpublish. Its lists of
// published nodes come from the test.
type lister struct {
	nodes [][]string // one list for each request; the last list is used repeatedly
	asked int
}

// Call implements call.Caller.
func (l *lister) Call(ctx context.Context, m call.Method, request any) (any, error) {
	h := call.Handlers{}
	call.HandleDo(h, l.ControllerPublish)
	call.HandleRun(h, l.ControllerUnpublish)
	call.HandleDo(h, l.ControllerGetVolume)
	call.HandleDo(h, l.ListVolumes)
	return h.Call(ctx, m, request)
}

func (l *lister) ControllerPublish(context.Context, call.ControllerPublishRequest) (map[string]string, error) {
	return nil, nil
}

func (l *lister) ControllerUnpublish(context.Context, call.ControllerUnpublishRequest) error {
	return nil
}

func (l *lister) ControllerGetVolume(context.Context, call.GetVolumeRequest) (call.StorageVolume, error) {
	now := l.nodes[min(l.asked, len(l.nodes)-1)]
	l.asked++
	return call.StorageVolume{ExternalID: "x", PublishedNodes: now}, nil
}

// ListVolumes returns the volume on its second page.
func (l *lister) ListVolumes(ctx context.Context, r call.ListVolumesRequest) (call.VolumePage, error) {
	if r.Token == "" {
		return call.VolumePage{Entries: []call.StorageVolume{{ExternalID: "other", PublishedNodes: []string{"n"}}}, Next: "2"}, nil
	}
	v, err := l.ControllerGetVolume(ctx, call.GetVolumeRequest{ExternalID: "x"})
	return call.VolumePage{Entries: []call.StorageVolume{v}}, err
}

// TestAttachmentChecked makes a ControllerPublishVolume or ControllerUnpublishVolume after a call
// of unknown outcome. The plugin's list of published nodes must decide whether the new call
// succeeded.
func TestAttachmentChecked(t *testing.T) {
	here, nowhere := []string{"m", "n"}, []string{"m"}
	late := []volume.Watch{{Attachment: true, Undo: true}}
	get := plugin.Caps{Attach: true, PublishedNodes: true, Get: true}
	list := plugin.Caps{Attach: true, PublishedNodes: true, List: true}
	for _, tt := range []struct {
		name    string
		kind    call.Method
		caps    plugin.Caps
		watches []volume.Watch
		nodes   [][]string
		asked   int // expected number of list requests; 0 means at least two, -1 means none
		ok      bool
	}{
		{"attached", call.ControllerPublish, get, late, [][]string{here}, 1, true},
		{"attached, by the list", call.ControllerPublish, list, late, [][]string{here}, 1, true},
		{"attached, after a while", call.ControllerPublish, get, late, [][]string{nowhere, nowhere, here}, 3, true},
		{"not attached", call.ControllerPublish, get, late, [][]string{nowhere}, 0, false},
		{"detached", call.ControllerUnpublish, get, late, [][]string{nowhere}, 1, true},
		{"not detached", call.ControllerUnpublish, list, late, [][]string{here}, 0, false},
		{"nothing may come late", call.ControllerPublish, get, nil, [][]string{nowhere}, -1, true},
		{"the plugin does not tell", call.ControllerPublish, plugin.Caps{Attach: true, Get: true}, late, [][]string{nowhere}, -1, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, err := mount.New()
			if err != nil {
				t.Fatal(err)
			}
			l := &lister{nodes: tt.nodes}
			m := volmgr.New(volmgr.Options{
				Root: t.TempDir(), Host: h,
				Plugin:  func(volume.Volume, call.Method) (call.Caller, error) { return l, nil },
				Secrets: func(volume.Volume) (call.Secrets, error) { return nil, nil },
			})
			r := volume.Record{
				Volume: volume.Volume{ID: "v", ExternalID: "x", Capabilities: []call.Capability{{Access: call.SingleNodeWriter, Attachment: call.FileSystem}}},
				Node:   volume.NodeSide{Watches: tt.watches},
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			out := m.Do(ctx, r, volume.Action{Kind: tt.kind, NodeID: "n"}, plugin.View{Info: plugin.Info{Caps: tt.caps}})
			if (out.Err == nil) != tt.ok || !tt.ok && !strings.Contains(out.Err.Message, "the plugin answered OK") {
				t.Errorf("the outcome is %+v", out)
			}
			switch {
			case tt.asked > 0 && l.asked != tt.asked, tt.asked == 0 && l.asked < 2, tt.asked < 0 && l.asked > 0:
				t.Errorf("it was asked %d times", l.asked)
			}
		})
	}
}
