package plugintest_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/plugintest"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// world is a fake plugin without faults, with a fake host and fake records. A test replaces
// functions of world to change how the plugin behaves.
type world struct {
	t    *testing.T
	dir  string
	info plugin.Info

	create  func(call.CreateVolumeRequest) (call.CreateVolumeResult, error)
	remove  func(id string) error
	attach  func() (map[string]string, error)
	detach  func() error
	stage   func(path string) error
	unstage func(path string) error
	probe   func() (bool, error)
	nodeID  func() string

	incarnation atomic.Uint64

	mu       sync.Mutex
	volumes  map[string]int64 // maps the names of volumes to their sizes
	mounts   map[string]int   // maps paths to their numbers of mounts
	readOnly map[string]bool
	scratch  *plugin.Scratch
	saved    []plugin.Scratch
	saveErr  error
	calls    []string
	events   []volume.Event
	inUse    []string
	owned    string // the id of a registered volume that uses the tested storage
}

func newWorld(t *testing.T) *world {
	return &world{t: t, dir: t.TempDir(), volumes: map[string]int64{}, mounts: map[string]int{}, readOnly: map[string]bool{},
		info: plugin.Info{Driver: "fake.example.com", Version: "1", NodeID: "n", HasNode: true, HasController: true,
			Caps: plugin.Caps{Attach: true, CreateDelete: true, Stage: true, Stats: true, NodeMultiWriter: true}}}
}

func (w *world) service() *plugintest.Service {
	return &plugintest.Service{
		Plugins: w, Records: w, Host: w, Paths: w, Grace: 10 * time.Millisecond,
		Secrets: func(volume.Volume) (call.Secrets, error) { return nil, nil },
		Events: func(es ...volume.Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, es...)
		},
	}
}

// vet runs a plugin test and returns the results of the checks whose verdict is neither OK nor
// Skipped.
func (w *world) vet(ctx context.Context, ask plugintest.Ask) (map[string]plugintest.Result, error) {
	odd := map[string]plugintest.Result{}
	_, err := w.service().Run(ctx, "p", ask, func(r plugintest.Result) error {
		if r.Verdict != plugintest.OK && r.Verdict != plugintest.Skipped {
			odd[r.Check] = r
		}
		return nil
	})
	return odd, err
}

// clean reports an error if the plugin test has left anything on the host or in the storage.
func (w *world) clean() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.mounts, func(_ string, n int) bool { return n == 0 })
	left, err := filepath.Glob(filepath.Join(w.dir, "*", "*"))
	if err != nil || len(w.mounts) > 0 || len(w.volumes) > 0 || len(left) > 0 || w.scratch != nil {
		w.t.Errorf("left: mounts %v, volumes %v, files %q, record %+v, %v", w.mounts, w.volumes, left, w.scratch, err)
	}
}

func (w *world) called(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, name)
}

// refuse returns the error of a plugin that refuses a call without any effect.
func refuse(code string) error {
	return &volume.CallError{Step: "x", Code: code, Message: "said so", Retry: volume.RetryBackoff, Answered: true}
}

// The following methods implement plugintest.Plugins.

func (w *world) View(id string) plugin.View {
	return plugin.View{Known: id == "p", Ready: true, Incarnation: w.incarnation.Load(), Info: w.info}
}
func (w *world) Await(ctx context.Context, _ string) error { return ctx.Err() }
func (w *world) Tested(string) (plugintest.Plugin, error)  { return w, nil }
func (w *world) MayKill(string) error                      { return nil }
func (w *world) Kill(string, string) error                 { return errors.New("not here") }
func (w *world) Probe(context.Context) (bool, error) {
	if w.probe != nil {
		return w.probe()
	}
	return true, nil
}
func (w *world) Info(context.Context) (plugin.Info, error) {
	info := w.info
	if w.nodeID != nil {
		info.NodeID = w.nodeID()
	}
	return info, nil
}

// Call implements call.Caller.
func (w *world) Call(ctx context.Context, m call.Method, request any) (any, error) {
	h := call.Handlers{}
	call.HandleDo(h, w.CreateVolume)
	call.HandleRun(h, w.DeleteVolume)
	call.HandleDo(h, w.ControllerPublish)
	call.HandleRun(h, w.ControllerUnpublish)
	call.HandleRun(h, w.NodeStage)
	call.HandleRun(h, w.NodeUnstage)
	call.HandleRun(h, w.NodePublish)
	call.HandleRun(h, w.NodeUnpublish)
	call.HandleDo(h, w.NodeStats)
	return h.Call(ctx, m, request)
}

func (w *world) CreateVolume(ctx context.Context, r call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
	w.called("create")
	if ctx.Err() != nil {
		return call.CreateVolumeResult{}, refuse("Canceled")
	}
	if w.create != nil {
		return w.create(r)
	}
	return w.doCreate(r)
}

func (w *world) doCreate(r call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	size, ok := w.volumes[r.Name]
	if ok && size < r.CapacityMin {
		return call.CreateVolumeResult{}, refuse("AlreadyExists")
	}
	if !ok {
		size = max(r.CapacityMin, 1<<20)
		w.volumes[r.Name] = size
		if err := os.MkdirAll(w.data(r.Name), 0o755); err != nil {
			w.t.Error(err)
		}
	}
	return call.CreateVolumeResult{ExternalID: r.Name, Capacity: size}, nil
}

// data returns the directory that contains the files of a volume. The method clean does not check
// this directory.
func (w *world) data(id string) string { return filepath.Join(w.dir+"-data", id) }

func (w *world) DeleteVolume(_ context.Context, r call.DeleteVolumeRequest) error {
	w.called("delete")
	if w.remove != nil {
		return w.remove(r.ExternalID)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.volumes, r.ExternalID)
	return nil
}

func (w *world) ControllerPublish(context.Context, call.ControllerPublishRequest) (map[string]string, error) {
	w.called("attach")
	if w.attach != nil {
		return w.attach()
	}
	return map[string]string{"dev": "1"}, nil
}

func (w *world) ControllerUnpublish(context.Context, call.ControllerUnpublishRequest) error {
	w.called("detach")
	if w.detach != nil {
		return w.detach()
	}
	return nil
}

func (w *world) NodeStage(_ context.Context, r call.NodeStageRequest) error {
	w.called("stage")
	if w.stage != nil {
		return w.stage(r.StagingPath)
	}
	w.mount(r.StagingPath)
	return nil
}

// mount adds a mount at a path if the path has none.
func (w *world) mount(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mounts[path] = 1
}

func (w *world) unmount(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mounts[path] = max(0, w.mounts[path]-1)
}

func (w *world) NodeUnstage(_ context.Context, r call.NodeUnstageRequest) error {
	w.called("unstage")
	if w.unstage != nil {
		return w.unstage(r.StagingPath)
	}
	w.unmount(r.StagingPath)
	return nil
}

func (w *world) NodePublish(_ context.Context, r call.NodePublishRequest) error {
	w.called("publish")
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.volumes[r.ExternalID]; !ok {
		return refuse("NotFound")
	}
	if w.mounts[r.StagingPath] == 0 {
		return refuse("FailedPrecondition")
	}
	if w.mounts[r.TargetPath] > 0 {
		return nil
	}
	data := w.data(r.ExternalID)
	if r.ReadOnly {
		data = "/proc/self" // a directory without write access
	}
	if err := os.Symlink(data, r.TargetPath); err != nil {
		return refuse("Internal")
	}
	w.mounts[r.TargetPath], w.readOnly[r.TargetPath] = 1, r.ReadOnly
	return nil
}

func (w *world) NodeUnpublish(_ context.Context, r call.NodeUnpublishRequest) error {
	w.called("unpublish")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mounts[r.TargetPath] = 0
	if err := os.Remove(r.TargetPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return refuse("Internal")
	}
	return nil
}

func (w *world) NodeStats(context.Context, call.StatsRequest) (call.Stats, error) {
	return call.Stats{Bytes: &call.Usage{Total: 2, Used: 1}}, nil
}

// The following methods implement plugintest.Records.

func (w *world) Scratch(string) *plugin.Scratch {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.scratch
}

func (w *world) SaveScratch(_ context.Context, _ string, s *plugin.Scratch) error {
	w.called("save")
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.scratch = s; s != nil {
		w.saved = append(w.saved, *s)
	}
	return w.saveErr
}
func (w *world) Registered(string, string) (string, bool) { return w.owned, w.owned != "" }
func (w *world) InUse(string) []string                    { return w.inUse }

// The following methods implement plugintest.Host.

func (w *world) Look(_ context.Context, path string) volume.Sight {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mounts[path] == 0 {
		return volume.Sight{}
	}
	return volume.Sight{Seen: volume.SeenMount, ReadOnly: w.readOnly[path], Identity: volume.MountIdentity{FSType: "ext4"}}
}

func (w *world) Count(path string) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mounts[path], nil
}
func (w *world) Own(volume.MountIdentity) (bool, error)       { return false, nil }
func (w *world) MakeReadOnly(context.Context, string) error   { return nil }
func (w *world) Unmount(_ context.Context, path string) error { w.unmount(path); return nil }
func (w *world) Remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// The following methods implement plugintest.Paths.

func (w *world) StagingPath(_, id string) string {
	return filepath.Join(w.dir, "s", volume.VolumeComponent(id))
}
func (w *world) MakeDir(dir string) error { return os.MkdirAll(dir, 0o700) }

func (w *world) TargetPath(_, alloc, id string, _ bool) string {
	return filepath.Join(w.dir, "t", volume.AllocComponent(alloc), volume.VolumeComponent(id))
}
