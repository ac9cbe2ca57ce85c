package claim_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/claim"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// world is a fake store, queue and plugin for one volume "data". Each wake calls onWake, in a
// separate goroutine unless inline is set.
type world struct {
	mu      sync.Mutex
	r       volume.Record
	there   bool
	writes  int
	fail    error
	waiters chan struct{}
	attempt *volume.Attempt
	wakes   int
	gone    bool                        // a test has removed the mount
	view    atomic.Pointer[plugin.View] // an atomic pointer because Change also reads it
	onWake  func(*world)
	inline  bool // Wake waits for onWake to return

	draining bool
}

// patience limits the wait for an event that must happen, even on a busy host.
const patience = 60 * time.Second

func newWorld() *world {
	w := &world{
		r: volume.Record{Volume: volume.Volume{ID: "data", PluginID: "ebs", Capabilities: []call.Capability{
			{Access: call.SingleNodeWriter, Attachment: call.FileSystem},
			{Access: call.SingleNodeMultiWriter, Attachment: call.FileSystem},
		}}},
		there: true, waiters: make(chan struct{}), onWake: (*world).obey,
	}
	w.setView(true, "ready")
	return w
}

func (w *world) Abandon(string) {}

func (w *world) Yield(string) {}

func (w *world) service() *claim.Service {
	return &claim.Service{Store: w, Queue: w, Plugins: w, Paths: w, Private: []string{"/var/lib/volagent"}}
}

func (w *world) Volume(id string) (volume.Record, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.r, w.there && id == w.r.Volume.ID
}

func (w *world) Change(_ context.Context, id string, fn func(volume.Record) (volume.Record, bool, error)) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.there || id != w.r.Volume.ID {
		return volume.Errorf(volume.ErrNotFound, "no volume %q", id)
	}
	next, changed, err := fn(w.r)
	if err == nil && changed {
		if w.fail != nil {
			return w.fail
		}
		w.r = next
		w.writes++
	}
	return err
}

func (w *world) Advance(id string) { w.Wake(id) }

func (w *world) Wake(string) {
	w.mu.Lock()
	w.wakes++
	act, inline := w.onWake, w.inline
	w.mu.Unlock()
	switch {
	case act == nil:
	case inline:
		act(w)
	default:
		go act(w)
	}
}

func (w *world) Draining() bool { return w.draining }

func (w *world) Detach(ctx context.Context, id string, fn func(volume.Record) (volume.Record, bool, error)) error {
	return w.Change(ctx, id, fn)
}

func (w *world) Changed(string) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiters
}

func (w *world) Attempt(string, string) *volume.Attempt {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.attempt
}

func (w *world) InPlace(_ context.Context, r volume.Record, alloc string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.gone
}

func (w *world) View(string) plugin.View { return *w.view.Load() }

func (w *world) setView(ready bool, state string) {
	w.view.Store(&plugin.View{Known: true, Ready: ready, State: state})
}

func (w *world) StagingPath(plugin, id string) string { return "/s/" + plugin + "/" + id }
func (w *world) TargetPath(plugin, alloc, id string, _ bool) string {
	return "/t/" + plugin + "/" + alloc + "/" + id
}

// change runs fn under the lock and notifies all waiting calls.
func (w *world) change(fn func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fn()
	close(w.waiters)
	w.waiters = make(chan struct{})
}

// obey mounts every claim that must be mounted, and removes every other claim.
func (w *world) obey() {
	w.change(func() {
		for _, c := range w.r.Ordered() {
			if c.Wanted {
				w.r, _ = volume.Apply(w.r, volume.Action{Kind: call.NodePublish, Alloc: c.Alloc, Path: c.Target}, volume.Outcome{Mount: &volume.MountIdentity{ID: 1}})
				continue
			}
			w.r, _ = volume.Apply(w.r, volume.Action{Kind: call.NodeUnpublish, Alloc: c.Alloc, Path: c.Target}, volume.Outcome{})
			w.r, _ = volume.Apply(w.r, volume.Action{Kind: volume.Free, Alloc: c.Alloc}, volume.Outcome{})
		}
	})
}

// failWith returns an onWake function that makes the step a fail. The argument retry states whether
// the queue retries the step.
func failWith(a volume.Action, retry volume.Retry) func(*world) {
	return func(w *world) {
		w.change(func() {
			w.attempt = &volume.Attempt{Action: a, Tries: 2, Err: &volume.CallError{
				Step: string(a.Kind), Code: "Internal", Message: "no such device", Retry: retry,
			}}
		})
	}
}

// claims lists the allocs that have a claim. It puts "-" before an alloc whose claim is being
// detached.
func (w *world) claims() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var s []string
	for _, c := range w.r.Ordered() {
		name := c.Alloc
		if !c.Wanted {
			name = "-" + name
		}
		s = append(s, name)
	}
	return strings.Join(s, " ")
}

// hold makes a claim and waits until it is mounted.
func (w *world) hold(t *testing.T, alloc string) {
	t.Helper()
	if _, _, err := w.service().Claim(t.Context(), "data", volume.Request{Alloc: alloc}, patience); err != nil {
		t.Fatal(err)
	}
}

// want checks that err has the given kind and contains each of the words.
func want(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("got %v, want a %v", err, kind)
	}
	for _, s := range words {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not say %q", err, s)
		}
	}
}

func TestClaim(t *testing.T) {
	w := newWorld()
	_, c, err := w.service().Claim(t.Context(), "data", volume.Request{Alloc: "web", Terms: volume.Terms{At: "/srv/../srv/data/"}}, 20*time.Millisecond)
	if err == nil || c.At != "/srv/data" {
		t.Fatalf("it is mounted without its bind: %+v, %v", c, err)
	}
	w = newWorld()
	r, c, err := w.service().Claim(t.Context(), "data", volume.Request{Alloc: "web"}, patience)
	if err != nil || c.State != volume.Mounted || c.Target != "/t/ebs/web/data" || r.Node.StagingPath != "/s/ebs/data" || c.Owner.Kind != volume.OwnerNone {
		t.Errorf("got %+v, %v", c, err)
	}
	writes, wakes := w.writes, w.wakes
	again, c2, err := w.service().Claim(t.Context(), "data", volume.Request{Alloc: "web"}, patience)
	if err != nil || c2 != c || again.Generation != r.Generation || w.writes != writes || w.wakes != wakes {
		t.Errorf("the same again: %+v, %v, %d writes, %d wakes", c2, err, w.writes-writes, w.wakes-wakes)
	}
	_, _, err = w.service().Claim(t.Context(), "data", volume.Request{Alloc: "web", Terms: volume.Terms{ReadOnly: true}}, patience)
	want(t, err, volume.ErrRefused, "with another read-only")
}

// TestClaimAgainUnmounted checks a repeated claim. Claim must return a path only while the volume
// is mounted. If another process has unmounted the volume, the agent first mounts it again.
func TestClaimAgainUnmounted(t *testing.T) {
	w := newWorld()
	w.hold(t, "web")
	w.gone = true
	w.onWake = func(w *world) { w.change(func() { w.gone = false }) }
	wakes := w.wakes
	if _, c, err := w.service().Claim(t.Context(), "data", volume.Request{Alloc: "web"}, patience); err != nil || c.State != volume.Mounted || w.gone || w.wakes != wakes+1 {
		t.Errorf("got %+v, %v, %d wakes", c, err, w.wakes-wakes)
	}
	w.gone, w.onWake = true, nil
	_, _, err := w.service().Claim(t.Context(), "data", volume.Request{Alloc: "web"}, 20*time.Millisecond)
	want(t, err, volume.ErrTimeout)
	if w.claims() != "web" {
		t.Errorf("the claims are %q", w.claims())
	}
}

// TestNoWait checks that the claim stays if the caller does not wait. The agent continues with the
// claim even if a step fails.
func TestNoWait(t *testing.T) {
	w := newWorld()
	w.onWake = failWith(volume.Action{Kind: call.NodeStage}, volume.RetryNever)
	_, c, err := w.service().Claim(t.Context(), "data", volume.Request{Alloc: "web"}, 0)
	if err != nil || c.State != volume.Pending || w.wakes != 1 || w.claims() != "web" {
		t.Errorf("got %+v, %v, %d wakes, claims %q", c, err, w.wakes, w.claims())
	}
}

// TestWithdrawn checks that a call detaches the claim that it made if the claim is not mounted in
// time. The message mentions the detach and gives the reason. So each wait ends. (invariant I8)
func TestWithdrawn(t *testing.T) {
	stage := volume.Action{Kind: call.NodeStage}
	stopping, stop := context.WithCancelCause(context.Background())
	gone, leave := context.WithCancel(context.Background())
	for _, tt := range []struct {
		name   string
		ctx    context.Context
		onWake func(*world)
		kind   error
		words  []string
		left   string
	}{
		{"time is up, with no answer", t.Context(), nil, volume.ErrTimeout, []string{"is not mounted yet", "; the claim was withdrawn"}, "-web"},
		{"time is up, after failures", t.Context(), failWith(stage, volume.RetryBackoff), volume.ErrTimeout, []string{"NodeStageVolume", "no such device", "2 tries", "withdrawn"}, "-web"},
		{"a final error", t.Context(), failWith(stage, volume.RetryChange), errCall, []string{"NodeStageVolume", "no such device", "withdrawn"}, "-web"},
		{"an error that nothing helps", t.Context(), failWith(volume.Action{Kind: call.NodePublish, Alloc: "web"}, volume.RetryNever), errCall, []string{"NodePublishVolume", "withdrawn"}, "-web"},
		{"another alloc's final error", t.Context(), failWith(volume.Action{Kind: call.NodePublish, Alloc: "db"}, volume.RetryNever), volume.ErrTimeout, []string{"withdrawn"}, "-web"},
		{"the caller is gone", gone, func(*world) { leave() }, context.Canceled, []string{"withdrawn"}, "-web"},
		{"the agent is stopping", stopping, func(*world) { stop(volume.ErrStopping) }, context.Canceled, nil, "web"},
		{"the plugin is down", t.Context(), func(w *world) {
			w.change(func() { w.setView(false, "backing off") })
		}, volume.ErrPluginUnavailable, []string{`plugin "ebs" is backing off`, "withdrawn"}, "-web"},
		{"the plugin stays down", t.Context(), func(w *world) {
			w.change(func() {
				w.view.Store(&plugin.View{Known: true, Final: true, Stopped: true, State: "stopped", Reason: "on request"})
			})
		}, volume.ErrPluginUnavailable, []string{`plugin "ebs" is stopped: on request`, "withdrawn"}, "-web"},
		{"released by somebody else", t.Context(), func(w *world) {
			w.change(func() { w.r, _ = volume.Detach(w.r, "web") })
		}, volume.ErrRefused, []string{"was detached meanwhile"}, "-web"},
		{"detached and deleted by another caller", t.Context(), func(w *world) {
			w.change(func() {
				w.r.Claims = maps.Clone(w.r.Claims)
				delete(w.r.Claims, "web")
			})
		}, volume.ErrRefused, []string{"was detached meanwhile"}, ""},
		{"deregistered", t.Context(), func(w *world) { w.change(func() { w.there = false }) }, volume.ErrNotFound, []string{`no volume "data"`}, "web"},
	} {
		w := newWorld()
		w.onWake = once(tt.onWake)
		_, _, err := w.service().Claim(tt.ctx, "data", volume.Request{Alloc: "web"}, w.waits(tt.kind))
		if err == nil {
			t.Errorf("%s: it is mounted", tt.name)
			continue
		}
		if errors.Is(tt.kind, errCall) {
			var ce *volume.CallError
			if !errors.As(err, &ce) {
				t.Errorf("%s: %v hides the call's error", tt.name, err)
			}
		} else if !errors.Is(err, tt.kind) {
			t.Errorf("%s: got %v, want a %v", tt.name, err, tt.kind)
		}
		for _, s := range tt.words {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %q does not say %q", tt.name, err, s)
			}
		}
		if tt.name == "the agent is stopping" && strings.Contains(err.Error(), "withdrawn") {
			t.Errorf("%s: %v", tt.name, err)
		}
		if got := w.claims(); got != tt.left {
			t.Errorf("%s: the claims are %q, want %q", tt.name, got, tt.left)
		}
	}
}

var errCall = errors.New("a call's own error")

// waits returns how long Claim waits in a test that expects an error of the given kind. A timeout
// error needs a short wait. In this case, onWake runs before the wait begins.
func (w *world) waits(kind error) time.Duration {
	w.inline = errors.Is(kind, volume.ErrTimeout) || errors.Is(kind, volume.ErrPluginUnavailable)
	if w.inline {
		return 100 * time.Millisecond
	}
	return patience
}

// once returns a function that runs fn on the first wake only.
func once(fn func(*world)) func(*world) {
	if fn == nil {
		return nil
	}
	var o sync.Once
	return func(w *world) { o.Do(func() { fn(w) }) }
}

// TestOldClaimStays checks that a failed wait does not detach a claim that existed before the call.
func TestOldClaimStays(t *testing.T) {
	w := newWorld()
	w.onWake = nil
	if _, _, err := w.service().Claim(t.Context(), "data", volume.Request{Alloc: "web"}, 0); err != nil {
		t.Fatal(err)
	}
	_, _, err := w.service().Claim(t.Context(), "data", volume.Request{Alloc: "web"}, 20*time.Millisecond)
	want(t, err, volume.ErrTimeout)
	if got := w.claims(); got != "web" || strings.Contains(err.Error(), "withdrawn") {
		t.Errorf("the claims are %q after %v", got, err)
	}
}

// TestStaleFailure checks that an earlier error does not end the wait while the queue is about to
// retry the step for the new claim.
func TestStaleFailure(t *testing.T) {
	for name, change := range map[string]func(*volume.Attempt){
		"due":     func(at *volume.Attempt) { at.Next = time.Unix(1, 0) },
		"running": func(at *volume.Attempt) { at.Running = true },
	} {
		w := newWorld()
		at := &volume.Attempt{Action: volume.Action{Kind: call.NodeStage}, Tries: 1, Err: &volume.CallError{Step: "NodeStageVolume", Code: "InvalidArgument", Retry: volume.RetryChange}}
		change(at)
		w.attempt = at
		w.onWake = func(w *world) {
			select {
			// give the claim call time to read the old error before the retry
			case <-time.After(20 * time.Millisecond):
			case <-t.Context().Done():
			}
			w.obey()
		}
		if _, c, err := w.service().Claim(t.Context(), "data", volume.Request{Alloc: "web"}, patience); err != nil || c.State != volume.Mounted {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
		at.Action = volume.Action{Kind: call.NodeUnpublish, Alloc: "web"}
		if err := w.service().Detach(t.Context(), "data", "web", false, patience); err != nil {
			t.Errorf("%s: detach: %v", name, err)
		}
	}
}

// TestHolders checks that a claim that conflicts with a live claim is refused at once. A claim that
// conflicts with a claim being detached waits.
func TestHolders(t *testing.T) {
	w := newWorld()
	w.hold(t, "db")
	begun := time.Now()
	_, _, err := w.service().Claim(t.Context(), "data", volume.Request{Alloc: "web"}, patience)
	want(t, err, volume.ErrRefused, `is in use in mode single-node-writer by "db"`)
	if took := time.Since(begun); took > patience/2 {
		t.Errorf("a live holder was waited for, %v", took)
	}

	w.onWake = nil
	if err := w.service().Detach(t.Context(), "data", "db", false, 0); err != nil {
		t.Fatal(err)
	}
	_, _, err = w.service().Claim(t.Context(), "data", volume.Request{Alloc: "web"}, 0)
	want(t, err, volume.ErrDetaching)
	_, _, err = w.service().Claim(t.Context(), "data", volume.Request{Alloc: "web"}, 20*time.Millisecond)
	want(t, err, volume.ErrTimeout, "timed out", `"db" (being detached: unpublishing)`)
	if got := w.claims(); got != "-db" || strings.Contains(err.Error(), "withdrawn") {
		t.Errorf("the claims are %q after %v", got, err)
	}

	// "web" is another alloc; "db" had the earlier claim
	for _, alloc := range []string{"web", "db"} {
		w := newWorld()
		w.hold(t, "db")
		w.onWake = nil
		if err := w.service().Detach(t.Context(), "data", "db", false, 0); err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() {
			_, c, err := w.service().Claim(context.Background(), "data", volume.Request{Alloc: alloc}, patience)
			if err == nil && c.State != volume.Mounted {
				err = errors.New("not mounted")
			}
			got <- err
		}()
		w.mu.Lock()
		w.onWake = (*world).obey
		w.mu.Unlock()
		w.obey()
		if err := <-got; err != nil {
			t.Errorf("%s after the release: %v", alloc, err)
		}
	}
}

func TestRefusedRequests(t *testing.T) {
	for _, tt := range []struct {
		id    string
		ask   volume.Request
		kind  error
		words string
	}{
		{"none", volume.Request{Alloc: "a"}, volume.ErrNotFound, `no volume "none"`},
		{"a/b", volume.Request{Alloc: "a"}, volume.ErrInvalid, "volume id"},
		{"data", volume.Request{}, volume.ErrInvalid, "alloc id is missing"},
		{"data", volume.Request{Alloc: "a/b"}, volume.ErrInvalid, "alloc id"},
		{"data", volume.Request{Alloc: "a", Terms: volume.Terms{Mode: call.Capability{Access: "exclusive"}}}, volume.ErrInvalid, `unknown access mode "exclusive"`},
		{"data", volume.Request{Alloc: "a", Terms: volume.Terms{Mode: call.Capability{Attachment: "tape"}}}, volume.ErrInvalid, `unknown attachment mode "tape"`},
		{"data", volume.Request{Alloc: "a", Terms: volume.Terms{Mode: call.Capability{Access: call.MultiNodeMultiWriter}}}, volume.ErrRefused, "has no capability"},
		{"data", volume.Request{Alloc: "a", Terms: volume.Terms{Owner: volume.Owner{Kind: "unit"}}}, volume.ErrInvalid, "does not support owners"},
		{"data", volume.Request{Alloc: "a", Terms: volume.Terms{At: "srv"}}, volume.ErrInvalid, "not an absolute path"},
		{"data", volume.Request{Alloc: "a", Terms: volume.Terms{At: "/var/lib/volagent"}}, volume.ErrInvalid, "the agent's own"},
		{"data", volume.Request{Alloc: "a", Terms: volume.Terms{At: "/var/lib/volagent/csi/x"}}, volume.ErrInvalid, "the agent's own"},
		{"data", volume.Request{Alloc: "a", Terms: volume.Terms{At: "/srv/../var/lib"}}, volume.ErrInvalid, "the agent's own"},
		{"data", volume.Request{Alloc: "a", Terms: volume.Terms{At: "/"}}, volume.ErrInvalid, "the agent's own"},
	} {
		w := newWorld()
		_, _, err := w.service().Claim(t.Context(), tt.id, tt.ask, patience)
		want(t, err, tt.kind, tt.words)
		if w.writes != 0 || w.wakes != 0 {
			t.Errorf("%+v: %d writes, %d wakes", tt.ask, w.writes, w.wakes)
		}
	}
	w := newWorld()
	s := w.service()
	s.Halt = "another mount namespace"
	_, _, err := s.Claim(t.Context(), "data", volume.Request{Alloc: "a"}, patience)
	want(t, err, volume.ErrRefused, "another mount namespace")
	w.fail = errors.New("disk full")
	_, _, err = w.service().Claim(t.Context(), "data", volume.Request{Alloc: "a"}, patience)
	want(t, err, w.fail)
	if w.claims() != "" || w.wakes != 0 {
		t.Errorf("after a failed write: claims %q, %d wakes", w.claims(), w.wakes)
	}
}

// TestClaimDash checks that the agent refuses a new claim whose alloc id begins with "-". It still
// finds a claim that an earlier version stored under such an id.
func TestClaimDash(t *testing.T) {
	w := newWorld()
	_, _, err := w.service().Claim(t.Context(), "data", volume.Request{Alloc: "-rf"}, patience)
	if !errors.Is(err, volume.ErrInvalid) || !strings.Contains(err.Error(), `alloc id "-rf" begins with "-"`) {
		t.Fatal(err)
	}
	if _, _, err := w.service().Claim(t.Context(), "data", volume.Request{Alloc: "web"}, patience); err != nil {
		t.Fatal(err)
	}
	c := w.r.Claims["web"]
	delete(w.r.Claims, "web")
	c.Alloc = "-rf"
	w.r.Claims["-rf"] = c
	if _, _, err := w.service().Claim(t.Context(), "data", volume.Request{Alloc: "-rf"}, patience); err != nil {
		t.Errorf("stored already: %v", err)
	}
}
