package provision_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// camera is a world whose plugin can also make snapshots.
type camera struct {
	*world
	snapshots map[string]volume.SnapshotIntent
	// at holds the snapshots that the plugin has, by name.
	at map[string]*call.Snapshot
	// fails holds the results of the next calls, by the kind of the call. A nil error means
	// success.
	fails map[call.Method][]error
	// ripe is the number of state queries after which a snapshot is ready.
	ripe   int
	paused []time.Duration
	// patience is the number of pauses after which the wait ends. With 0, the wait never ends.
	patience int
	pages    [][]call.Snapshot
	planted  func() // called during each pause
}

func newCamera(t *testing.T, caps ...string) *camera {
	t.Helper()
	c := &camera{world: newWorld(), snapshots: map[string]volume.SnapshotIntent{}, at: map[string]*call.Snapshot{}, fails: map[call.Method][]error{}}
	k := &c.view.Info.Caps
	k.Snapshot = true
	for _, has := range caps {
		*map[string]*bool{"list": &k.ListSnapshots, "get": &k.GetSnapshot, "group": &k.GroupSnapshot, "none": &k.Attach}[has] = true
		if has == "none" {
			k.Snapshot = false
		}
	}
	v := existing()
	v.Secrets = map[string]call.SecretRef{"key": {File: "/k"}}
	c.mustRegister(t, v)
	c.calls, c.events = nil, nil
	return c
}

func (c *camera) service() *provision.Service { return provision.New(c.options()) }

func (c *camera) options() provision.Options {
	o := c.world.options()
	o.Store, o.Queue, o.Plugins = c, c, c
	o.Secrets = func(v volume.Volume) (call.Secrets, error) {
		all := call.Secrets{}
		for name, ref := range v.Secrets {
			all[name] = call.NewSecret(ref.File + ref.Env)
		}
		return all, c.secrets
	}
	o.Pause = func(ctx context.Context, d time.Duration) error {
		c.paused = append(c.paused, d)
		if c.planted != nil {
			c.planted()
		}
		if c.patience > 0 && len(c.paused) >= c.patience {
			return context.DeadlineExceeded
		}
		return ctx.Err()
	}
	return o
}

func (c *camera) Snapshots() []volume.SnapshotIntent {
	return slices.Collect(maps.Values(c.snapshots))
}

// Update applies the whole change, including snapshots, or nothing if fn fails.
func (c *camera) Update(ctx context.Context, fn func(provision.Tx) error) error {
	was := maps.Clone(c.snapshots)
	err := c.world.Update(ctx, func(inner provision.Tx) error { return fn(cameraTx{inner, c}) })
	if err != nil {
		c.snapshots = was
	}
	return err
}

type cameraTx struct {
	provision.Tx
	c *camera
}

func (t cameraTx) Snapshot(key string) (volume.SnapshotIntent, bool) {
	i, ok := t.c.snapshots[key]
	return i, ok
}
func (t cameraTx) PutSnapshot(i volume.SnapshotIntent) { t.c.snapshots[i.Key()] = i }
func (t cameraTx) DeleteSnapshot(key string)           { delete(t.c.snapshots, key) }

func (c *camera) IDs() []string { return []string{"ebs"} }

func (c *camera) Provisioner(string) (call.Caller, error) {
	if !c.view.Ready {
		return nil, volume.Errorf(volume.ErrPluginUnavailable, "plugin is down")
	}
	return c.handlers(), nil
}

// handlers returns the plugin of the world, with the calls for snapshots.
func (c *camera) handlers() call.Handlers {
	h := c.world.handlers()
	call.HandleDo(h, c.CreateSnapshot)
	call.HandleRun(h, c.DeleteSnapshot)
	call.HandleDo(h, c.GetSnapshot)
	call.HandleDo(h, c.ListSnapshots)
	call.HandleDo(h, c.CreateGroupSnapshot)
	call.HandleRun(h, c.DeleteGroupSnapshot)
	call.HandleDo(h, c.GetGroupSnapshot)
	return h
}

// called records a call and returns the prepared result.
func (c *camera) called(k call.Method, what string, secrets call.Secrets) error {
	c.calls = append(c.calls, fmt.Sprintf("%s %s, %d held, %d secrets", k, what, len(c.held), len(secrets)))
	if rest := c.fails[k]; len(rest) > 0 {
		c.fails[k] = rest[1:]
		return rest[0]
	}
	return nil
}

func (c *camera) CreateSnapshot(_ context.Context, r call.SnapshotRequest) (call.Snapshot, error) {
	if len(c.snapshots) == 0 {
		c.calls = append(c.calls, "with no intent on disk")
	}
	if err := c.called(call.CreateSnapshot, r.Name+" of "+r.SourceID, r.Secrets); err != nil {
		return call.Snapshot{}, err
	}
	one, ok := c.at[r.Name]
	if !ok {
		one = &call.Snapshot{ID: fmt.Sprintf("snap-%d", len(c.at)+1), SourceID: r.SourceID, Size: 7}
		c.at[r.Name] = one
	}
	c.ripen(one)
	return *one, nil
}

func (c *camera) ripen(one *call.Snapshot) {
	one.Ready = one.Ready || c.ripe <= 0
	c.ripe--
}

func (c *camera) of(id string) *call.Snapshot {
	for _, one := range c.at {
		if one.ID == id {
			return one
		}
	}
	return nil
}

func (c *camera) GetSnapshot(_ context.Context, r call.GetSnapshotRequest) (call.Snapshot, error) {
	if err := c.called(call.GetSnapshot, r.ID, r.Secrets); err != nil {
		return call.Snapshot{}, err
	}
	one := c.of(r.ID)
	if one == nil {
		return call.Snapshot{}, refusal(call.GetSnapshot, "NotFound")
	}
	c.ripen(one)
	return *one, nil
}

func (c *camera) ListSnapshots(_ context.Context, r call.ListSnapshotsRequest) (call.SnapshotPage, error) {
	if err := c.called(call.ListSnapshots, r.ID+r.SourceID+r.Token, r.Secrets); err != nil {
		return call.SnapshotPage{}, err
	}
	if c.pages != nil {
		n := 0
		_, _ = fmt.Sscan(r.Token, &n)
		page := call.SnapshotPage{Entries: c.pages[n]}
		if n+1 < len(c.pages) {
			page.Next = fmt.Sprint(n + 1)
		}
		return page, nil
	}
	var page call.SnapshotPage
	for _, one := range c.at {
		if r.ID == "" || one.ID == r.ID {
			c.ripen(one)
			page.Entries = append(page.Entries, *one)
		}
	}
	return page, nil
}

func (c *camera) DeleteSnapshot(_ context.Context, r call.DeleteSnapshotRequest) error {
	return c.called(call.DeleteSnapshot, r.ID, r.Secrets)
}

func (c *camera) CreateGroupSnapshot(_ context.Context, r call.GroupSnapshotRequest) (call.GroupSnapshot, error) {
	if err := c.called(call.CreateGroupSnapshot, fmt.Sprint(r.Name, " of ", r.SourceIDs), r.Secrets); err != nil {
		return call.GroupSnapshot{}, err
	}
	c.ripe--
	return c.group(c.ripe < 0), nil
}

func (c *camera) group(ready bool) call.GroupSnapshot {
	return call.GroupSnapshot{ID: "group-1", Ready: ready, Snapshots: []call.Snapshot{
		{ID: "m1", SourceID: "vol-9", GroupID: "group-1", Ready: ready}, {ID: "m2", SourceID: "vol-8", GroupID: "group-1", Ready: ready},
	}}
}

func (c *camera) GetGroupSnapshot(_ context.Context, r call.GetGroupSnapshotRequest) (call.GroupSnapshot, error) {
	if err := c.called(call.GetGroupSnapshot, fmt.Sprint(r.ID, r.SnapshotIDs), r.Secrets); err != nil {
		return call.GroupSnapshot{}, err
	}
	c.ripe--
	return c.group(c.ripe < 0), nil
}

func (c *camera) DeleteGroupSnapshot(_ context.Context, r call.DeleteGroupSnapshotRequest) error {
	return c.called(call.DeleteGroupSnapshot, fmt.Sprint(r.ID, r.SnapshotIDs), r.Secrets)
}

// refusal returns the error of a failed call. It sets the retry class that csiclient would set.
func refusal(k call.Method, code string) *volume.CallError {
	retry := volume.RetryBackoff
	switch code {
	case "InvalidArgument", "AlreadyExists", "OutOfRange", "PermissionDenied", "Unauthenticated":
		retry = volume.RetryChange
	case "Unimplemented":
		retry = volume.RetryNever
	}
	return &volume.CallError{Step: string(k), Code: code, Message: "no", Retry: retry, Answered: code != "DeadlineExceeded"}
}

func (c *camera) take(t *testing.T, wait time.Duration) (volume.MadeSnapshot, error) {
	t.Helper()
	return c.service().Snapshot(t.Context(), volume.SnapshotAsk{Volumes: []string{"data"}, Name: "nightly"}, wait)
}

// IDs returns the id of the world's only plugin.
func (w *world) IDs() []string                        { return []string{"ebs"} }
func (w *world) Snapshots() []volume.SnapshotIntent   { return nil }
func (w *world) SnapshotNames() []volume.SnapshotName { return slices.Collect(maps.Values(w.names)) }

func (t tx) SnapshotNames() []volume.SnapshotName  { return t.w.SnapshotNames() }
func (t tx) PutSnapshotName(n volume.SnapshotName) { t.w.names[n.Key()] = n }
func (t tx) DeleteSnapshotName(key string)         { delete(t.w.names, key) }

func (t tx) Snapshot(string) (volume.SnapshotIntent, bool) { return volume.SnapshotIntent{}, false }
func (t tx) PutSnapshot(volume.SnapshotIntent)             {}
func (t tx) DeleteSnapshot(string)                         {}

// endless is a plugin that returns the same token for every page.
type endless struct{ *camera }

func (e endless) Provisioner(string) (call.Caller, error) {
	h := e.handlers()
	call.HandleDo(h, e.ListSnapshots)
	return h, nil
}

func (e endless) ListSnapshots(context.Context, call.ListSnapshotsRequest) (call.SnapshotPage, error) {
	return call.SnapshotPage{Next: "1"}, nil
}
