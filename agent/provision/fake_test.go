package provision_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// world is a fake store, a fake queue and a fake plugin in one type.
type world struct {
	volumes   map[string]volume.Record
	leftovers map[string]volume.Record
	failAt    int // number of the update that fails, counted from 1
	updates   int

	tested string                         // the storage volume that a plugin test uses
	names  map[string]volume.SnapshotName // snapshot names, by key

	held    map[string]bool
	woken   []string
	wake    func(id string) // called each time the queue is woken
	attempt *volume.Attempt
	forgot  []string
	events  []string

	view     plugin.View
	await    error
	calls    []string
	create   func(call.CreateVolumeRequest) (call.CreateVolumeResult, error)
	destroy  func(call.DeleteVolumeRequest) error
	validate error
	secrets  error
	seal     error
	storage
}

// sealer fakes encryption: it reverses the bytes of a value.
type sealer struct{ w *world }

func sealed(id, value string) call.SecretRef {
	text := []byte(value)
	slices.Reverse(text)
	return call.SecretRef{Sealed: id + " " + string(text)}
}

func (s sealer) Same(id string, refs, had map[string]call.SecretRef) map[string]call.SecretRef {
	refs = maps.Clone(refs)
	for name, ref := range refs {
		if ref.Literal != (call.Secret{}) && sealed(id, ref.Literal.Reveal()) == had[name] {
			refs[name] = had[name]
		}
	}
	return refs
}

func (s sealer) Equal(id string, refs, had map[string]call.SecretRef) map[string]call.SecretRef {
	return s.Same(id, refs, had)
}

func (s sealer) Seal(id string, refs, had map[string]call.SecretRef) (map[string]call.SecretRef, error) {
	refs = s.Same(id, refs, had)
	for name, ref := range refs {
		if ref.Literal != (call.Secret{}) {
			refs[name] = sealed(id, ref.Literal.Reveal())
		}
	}
	return refs, s.w.seal
}

func (s sealer) Move(refs map[string]call.SecretRef, from, to string) (map[string]call.SecretRef, error) {
	refs = maps.Clone(refs)
	for name, ref := range refs {
		if rest, ok := strings.CutPrefix(ref.Sealed, from+" "); ok {
			refs[name] = call.SecretRef{Sealed: to + " " + rest}
		}
	}
	return refs, s.w.seal
}

var errDisk = errors.New("disk full")

func newWorld() *world {
	w := &world{
		names:   map[string]volume.SnapshotName{},
		volumes: map[string]volume.Record{}, leftovers: map[string]volume.Record{}, held: map[string]bool{},
		view: plugin.View{Known: true, Ready: true, State: "ready", Info: plugin.Info{
			ID: "ebs", Driver: "ebs.csi", HasController: true, Caps: plugin.Caps{CreateDelete: true, Stats: true},
		}},
	}
	made := map[string]string{}
	w.create = func(r call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
		if made[r.Name] == "" {
			made[r.Name] = fmt.Sprintf("vol-%d", len(made)+1)
		}
		return call.CreateVolumeResult{ExternalID: made[r.Name], Capacity: 12, Context: map[string]string{"k": "v"}}, nil
	}
	w.destroy = func(call.DeleteVolumeRequest) error { return nil }
	return w
}

func (w *world) service() *provision.Service { return provision.New(w.options()) }

func (w *world) options() provision.Options {
	return provision.Options{
		Store: w, Queue: w, Plugins: w, Guards: w,
		Secrets: func(v volume.Volume) (call.Secrets, error) {
			return call.Secrets{"n": call.NewSecret(fmt.Sprint(len(v.Secrets)))}, w.secrets
		},
		Seal: sealer{w},
		Events: func(evs ...volume.Event) {
			for _, e := range evs {
				w.events = append(w.events, string(e.Type)+" "+e.Volume+": "+e.Message)
			}
		},
	}
}

func (w *world) Volume(id string) (volume.Record, bool) { r, ok := w.volumes[id]; return r, ok }

func key(driver, external string) string { return driver + "/" + external }

// Update applies the whole change, or nothing if fn fails.
func (w *world) Update(ctx context.Context, fn func(provision.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w.updates++
	volumes, leftovers := maps.Clone(w.volumes), maps.Clone(w.leftovers)
	err := fn(tx{w})
	if err == nil && w.updates == w.failAt {
		err = errDisk
	}
	if err != nil {
		w.volumes, w.leftovers = volumes, leftovers
	}
	return err
}

type tx struct{ w *world }

func (t tx) Volume(id string) (volume.Record, bool) { return t.w.Volume(id) }
func (t tx) PutVolume(r volume.Record)              { t.w.volumes[r.Volume.ID] = r }
func (t tx) DeleteVolume(id string)                 { delete(t.w.volumes, id) }

func (t tx) VolumeOf(driver, external string) (string, bool) {
	for id, r := range t.w.volumes {
		if external != "" && r.Volume.Driver == driver && r.Volume.ExternalID == external {
			return id, true
		}
	}
	return "", false
}

func (t tx) TestOf(driver, external string) (string, bool) {
	return "ebs", t.w.tested != "" && key(driver, external) == t.w.tested
}

func (t tx) Leftovers() []volume.Record { return slices.Collect(maps.Values(t.w.leftovers)) }

func (t tx) Leftover(driver, external string) (volume.Record, bool) {
	r, ok := t.w.leftovers[key(driver, external)]
	return r, ok
}

func (t tx) DeleteLeftover(driver, external string) { delete(t.w.leftovers, key(driver, external)) }

func (t tx) PutLeftover(r volume.Record, _ time.Time) {
	t.w.leftovers[key(r.Volume.Driver, r.Volume.ExternalID)] = r
}

func (w *world) Exclusive(_ context.Context, id string, fn func() error) error {
	if w.held[id] {
		return errors.New("taken twice")
	}
	w.held[id] = true
	defer delete(w.held, id)
	return fn()
}

func (w *world) Change(ctx context.Context, id string, fn func() error) error {
	return w.Exclusive(ctx, id, fn)
}

func (w *world) Call(ctx context.Context, id string, _ call.Method, fn func() error) error {
	return w.Exclusive(ctx, id, fn)
}

func (w *world) Changed(string) <-chan struct{}          { return nil }
func (w *world) Attempt(string, string) *volume.Attempt  { return w.attempt }
func (w *world) Forget(id string)                        { w.forgot = append(w.forgot, id) }
func (w *world) Unguard(volume.GuardedDir, string) error { return nil }

func (w *world) Wake(id string) {
	if w.woken = append(w.woken, id); w.wake != nil {
		w.wake(id)
	}
}

func (w *world) View(id string) plugin.View {
	if id != "ebs" {
		return plugin.View{State: "stopped"}
	}
	return w.view
}

func (w *world) Await(context.Context, string) error { return w.await }

func (w *world) Provisioner(string) (call.Caller, error) {
	if !w.view.Ready {
		return nil, volume.Errorf(volume.ErrPluginUnavailable, "plugin is down")
	}
	return w.handlers(), nil
}

// called records a call. It appends "beside others" to a call that does not run exclusively in the
// queue.
func (w *world) called(ctx context.Context, format string, args ...any) {
	call := fmt.Sprintf(format, args...)
	if len(w.held) != 1 || ctx == nil {
		call += " beside others"
	}
	w.calls = append(w.calls, call)
}

func (w *world) CreateVolume(ctx context.Context, r call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
	w.called(ctx, "create %s", r.Name)
	if got, ok := w.volumes["data"]; !ok || got.Volume.Provision != volume.Provisioning {
		w.calls = append(w.calls, "with no intent on disk")
	}
	return w.create(r)
}

func (w *world) DeleteVolume(ctx context.Context, r call.DeleteVolumeRequest) error {
	w.called(ctx, "delete %s", r.ExternalID)
	return w.destroy(r)
}

func (w *world) ValidateCapabilities(ctx context.Context, r call.ValidateRequest) error {
	w.called(ctx, "validate %s", r.ExternalID)
	return w.validate
}

// spec returns the file of a new volume. It has no external id.
func spec() volume.Volume {
	return volume.Volume{ID: "data", PluginID: "ebs", Parameters: map[string]string{"type": "gp3"}, Capabilities: []call.Capability{
		{Access: call.SingleNodeWriter, Attachment: call.FileSystem},
	}}
}

// existing returns the file of a volume that already has storage.
func existing() volume.Volume {
	v := spec()
	v.ExternalID = "vol-9"
	return v
}

// made returns the error of a failed CSI call with the given code.
func made(code string, retry volume.Retry, answered bool) *volume.CallError {
	return &volume.CallError{Step: "CreateVolume", Code: code, Message: "no", Retry: retry, Answered: answered}
}

func (w *world) mustCreate(t *testing.T) volume.Record {
	t.Helper()
	r, _, err := w.service().Create(t.Context(), spec(), false)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (w *world) mustRegister(t *testing.T, v volume.Volume) volume.Record {
	t.Helper()
	r, _, err := w.service().Register(t.Context(), v, false)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// claim adds a claim to the volume and marks it as mounted.
func (w *world) claim(t *testing.T, id string) {
	t.Helper()
	r, err := volume.Admit(w.volumes[id], volume.Request{Alloc: "web", StagingPath: "/s", Target: "/t"}, plugin.Info{Caps: plugin.Caps{Stage: true}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r, _ = volume.Apply(r, volume.Action{Kind: call.NodeStage, Path: "/s"}, volume.Outcome{Mount: &volume.MountIdentity{ID: 1}})
	r, _ = volume.Apply(r, volume.Action{Kind: call.NodePublish, Alloc: "web", Path: "/t"}, volume.Outcome{Mount: &volume.MountIdentity{ID: 2}})
	w.volumes[id] = r
}

func (w *world) release(t *testing.T, id string) {
	t.Helper()
	r, err := volume.Detach(w.volumes[id], "web")
	if err != nil {
		t.Fatal(err)
	}
	w.volumes[id] = r
}

// want checks that err has the given kind, and that its message or hint contains each of the words.
func want(t *testing.T, what string, err, kind error, words ...string) {
	t.Helper()
	if err == nil || kind != nil && !errors.Is(err, kind) {
		t.Errorf("%s: got %v, want a %v", what, err, kind)
		return
	}
	hint := ""
	var e *volume.Error
	if errors.As(err, &e) {
		hint = "\nhint: " + suggest.Hint(e.Remedy, e.Hint)
	}
	for _, s := range words {
		if !strings.Contains(err.Error()+hint, s) {
			t.Errorf("%s: %q does not say %q", what, err.Error()+hint, s)
		}
	}
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if g, s := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != s {
		t.Errorf("%s: got %s, want %s", what, g, s)
	}
}
