package volmgr_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// fakePlugin answers OK to all calls. During a publish, it calls a function of the test.
type fakePlugin struct {
	publish func(target string)
}

// Call implements call.Caller.
func (p fakePlugin) Call(ctx context.Context, m call.Method, request any) (any, error) {
	h := call.Handlers{}
	call.HandleRun(h, p.NodePublish)
	call.HandleRun(h, p.NodeUnpublish)
	return h.Call(ctx, m, request)
}

func (p fakePlugin) NodePublish(_ context.Context, r call.NodePublishRequest) error {
	p.publish(r.TargetPath)
	return nil
}

func (p fakePlugin) NodeUnpublish(_ context.Context, r call.NodeUnpublishRequest) error {
	if err := os.Remove(r.TargetPath); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// TestAllocDirStays unpublishes the last other volume of an alloc while a volume is being
// published. The directory of the alloc must remain.
func TestAllocDirStays(t *testing.T) {
	host, err := mount.New()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	var p fakePlugin
	m := volmgr.New(volmgr.Options{
		Root: root, Host: host,
		Plugin:  func(volume.Volume, call.Method) (call.Caller, error) { return p, nil },
		Secrets: func(volume.Volume) (call.Secrets, error) { return nil, nil },
	})
	do := func(k call.Method, id string) {
		t.Helper()
		r := volume.Record{
			Volume: volume.Volume{ID: id, PluginID: "p", Capabilities: []call.Capability{{Access: call.SingleNodeWriter, Attachment: call.FileSystem}}},
			Claims: map[string]volume.Claim{"a": {Alloc: "a", Target: m.TargetPath("p", "a", id, false)}},
		}
		m.Do(t.Context(), r, volume.Action{Kind: k, Alloc: "a", Path: m.TargetPath("p", "a", id, false)}, plugin.View{})
	}
	dir := filepath.Dir(m.TargetPath("p", "a", "x", false))
	p.publish = func(target string) {
		do(call.NodeUnpublish, "other")
		if err := os.Mkdir(target, 0o755); err != nil {
			t.Errorf("the release of another volume took the directory away: %v", err)
		}
	}
	do(call.NodePublish, "data") // the fake makes no mount at the target, which does not matter in this test
	do(call.NodeUnpublish, "other")
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("a release took away what still holds a target: %v", err)
	}
	do(call.NodeUnpublish, "data")
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the last release left the alloc's directory: %v", err)
	}
}
