package reconcile_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/reconcile"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// crashed returns a queue for the given records, in the state in which an agent starts it after a
// crash. begun contains the ids of the volumes with an unfinished snapshot.
func crashed(rs []volume.Record, p *fakePlugin, begun ...string) *reconcile.Queue {
	store := &memory{}
	for _, r := range rs {
		store.put(r)
	}
	return reconcile.New(reconcile.Options{
		Store: store, Plugins: p, Host: &host{mounts: map[string]volume.MountIdentity{}, running: map[string]int{}},
		Log: hclog.NewNullLogger(), Events: func([]volume.Event) {}, Crashed: true, Begun: begun,
		Blocked: func(v volume.Volume) string {
			if v.ID == "owed" {
				return "a debt comes first"
			}
			return ""
		},
	})
}

// TestChangeAfterCrash checks the wait of Change after a crash of the agent. If a call of the
// crashed agent may still be running on the volume, Change waits for one call deadline. A call for
// a settled volume does not wait.
func TestChangeAfterCrash(t *testing.T) {
	const limit = 30 * time.Second
	of := func(id string, change func(*volume.Record)) volume.Record {
		r := volume.Record{Volume: volume.Volume{ID: id, PluginID: "p", ExternalID: "ext-" + id}}
		change(&r)
		return r
	}
	records := []volume.Record{
		of("free", func(*volume.Record) {}),
		of("mounted", func(r *volume.Record) {
			r.Claims = map[string]volume.Claim{"a": {Alloc: "a", Wanted: true, State: volume.Mounted, Published: volume.Present}}
			r.Node.Staged = volume.Present
		}),
		of("creating", func(r *volume.Record) { r.Volume.Provision = volume.Provisioning }),
		of("deleting", func(r *volume.Record) { r.Volume.Provision = volume.Deleting }),
		of("modifying", func(r *volume.Record) { r.Volume.Modifying = map[string]string{"iops": "1"} }),
		of("expanding", func(r *volume.Record) { r.Volume.Expansion.Want = 2 }),
		of("releasing", func(r *volume.Record) { r.Node.Watches = []volume.Watch{{Path: "/s", Undo: true}} }),
		of("snapshot", func(*volume.Record) {}),
	}
	for _, r := range records {
		id := r.Volume.ID
		for name, call := range map[string]func(context.Context, *reconcile.Queue, func() error) error{
			"change": func(ctx context.Context, q *reconcile.Queue, fn func() error) error { return q.Change(ctx, id, fn) },
			"call": func(ctx context.Context, q *reconcile.Queue, fn func() error) error {
				return q.Call(ctx, id, call.DeleteVolume, fn)
			},
		} {
			synctest.Test(t, func(t *testing.T) {
				p := &fakePlugin{v: plugin.View{Known: true, Ready: true, Incarnation: 1, CallTimeout: time.Second, ControllerTimeout: limit}}
				q := crashed(records, p, "snapshot")
				began, at := time.Now(), time.Duration(-1)
				if err := call(t.Context(), q, func() error { at = time.Since(began); return nil }); err != nil {
					t.Error(err)
				}
				settled := id == "free" || id == "mounted"
				if settled && at != 0 || !settled && (at < limit || at > limit+time.Second) {
					t.Errorf("%s of %q is made after %s", name, id, at)
				}
				began = time.Now()
				if err := call(t.Context(), q, func() error { at = time.Since(began); return nil }); err != nil || at != 0 {
					t.Errorf("the next %s of %q is made after %s, %v", name, id, at, err)
				}
			})
		}
	}
}

// TestChangeAfterRestartOfPlugin checks that the wait ends when the plugin process that may run the
// call has ended.
func TestChangeAfterRestartOfPlugin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := volume.Record{Volume: volume.Volume{ID: "v", PluginID: "p", Provision: volume.Provisioning}}
		p := &fakePlugin{v: plugin.View{Known: true, Ready: true, Incarnation: 1, ControllerTimeout: time.Hour}}
		q := crashed([]volume.Record{r}, p)
		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := q.Change(short, "v", func() error { t.Error("it is made at once"); return nil })
		if !errors.Is(err, volume.ErrTimeout) {
			t.Errorf("the wait is over, and the answer is %v", err)
		}
		p.set(func(v *plugin.View) { v.Incarnation = 2 })
		began := time.Now()
		if err := q.Change(t.Context(), "v", func() error { return nil }); err != nil || time.Since(began) > time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

// TestChangeBlockedByPendingCalls checks that Change is refused while pending calls remain after a
// forced deregister.
func TestChangeBlockedByPendingCalls(t *testing.T) {
	p := &fakePlugin{v: plugin.View{Known: true, Ready: true, Incarnation: 1}}
	q := crashed([]volume.Record{{Volume: volume.Volume{ID: "owed", PluginID: "p", ExternalID: "x"}}}, p)
	err := q.Change(t.Context(), "owed", func() error { t.Error("it is made"); return nil })
	if !errors.Is(err, volume.ErrRefused) {
		t.Errorf("the answer is %v", err)
	}
}

// TestAttachmentOutlastsPlugin checks that the watch for a late ControllerPublish or
// ControllerUnpublish continues when the plugin restarts.
func TestAttachmentOutlastsPlugin(t *testing.T) {
	s := newSetup(t, "v")
	r, _ := s.store.Volume("v")
	r.Claims = nil
	r.Node = volume.NodeSide{Watches: []volume.Watch{{Path: "/t/v/a", Alloc: "a"}, {Attachment: true, Undo: true}}}
	s.store.put(r)
	s.plugin.set(func(v *plugin.View) { v.CallTimeout, v.ControllerTimeout = time.Hour, time.Hour })
	s.Start()
	waits := func(volume.Record) bool {
		at := s.Attempt("v", "")
		return at != nil && at.Action.Cause == volume.CauseWatch
	}
	s.until(t, "v", "watching", waits)
	s.plugin.set(func(v *plugin.View) { v.Incarnation++ })
	looks := s.host.lookCount()
	s.PluginChanged("p")
	untilTrue(t, "looked at again", func() bool { return s.host.lookCount() > looks })
	s.until(t, "v", "watching", waits)
	if r, _ := s.store.Volume("v"); !r.Held() {
		t.Error("the watch ended with the plugin")
	}
}
