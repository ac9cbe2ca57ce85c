package plugintest_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/plugintest"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestFence checks the verdicts about a detach while the host writes. The fake plugin cuts no host off.
func TestFence(t *testing.T) {
	for _, tt := range []struct {
		name   string
		ask    plugintest.Ask
		detach func() error
		want   plugintest.Verdict
		said   string
	}{
		{"not asked", plugintest.Ask{}, nil, plugintest.Skipped, "needs --fence"},
		{"no effect", plugintest.Ask{Fence: true}, nil, plugintest.Broken, "this host can still write to the volume"},
		{"refused", plugintest.Ask{Fence: true}, refuseOnce("FailedPrecondition"), plugintest.WorksAround, "does not detach a volume in use"},
		{"a volume of the user", plugintest.Ask{Fence: true, ExternalID: "mine"}, nil, plugintest.Skipped, "not created by this test"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.detach = tt.detach
			var got plugintest.Result
			_, err := w.service().Run(t.Context(), "p", tt.ask, func(r plugintest.Result) error {
				if r.Check == "fence" {
					got = r
				}
				return nil
			})
			if err != nil || got.Verdict != tt.want || !strings.Contains(got.Said, tt.said) {
				t.Errorf("%+v, %v", got, err)
			}
			w.clean()
		})
	}
}

// refuseOnce returns a detach that a plugin refuses once.
func refuseOnce(code string) func() error {
	refused := false
	return func() error {
		if refused {
			return nil
		}
		refused = true
		return refuse(code)
	}
}

// TestVerdicts runs a plugin test for each deviation that a plugin may have. Exactly one check must
// report the deviation.
func TestVerdicts(t *testing.T) {
	const ok, copes, broken = plugintest.OK, plugintest.WorksAround, plugintest.Broken
	flip := 0
	for name, tt := range map[string]struct {
		tune  func(*world)
		check string
		want  plugintest.Verdict
	}{
		"good":                  {func(*world) {}, "", ok},
		"a name with blanks":    {func(w *world) { w.info.Driver = "my driver" }, "name", copes},
		"a long name":           {func(w *world) { w.info.Driver = strings.Repeat("x", 64) }, "name", copes},
		"not ready":             {func(w *world) { w.probe = func() (bool, error) { return false, nil } }, "probe", broken},
		"another node id":       {func(w *world) { w.nodeID = func() string { flip++; return strings.Repeat("n", 1+flip%2) } }, "node-info", broken},
		"no node id":            {func(w *world) { w.info.NodeID = "" }, "node-info", broken},
		"an id each time":       {anotherEachTime, "create-again", broken},
		"any size will do":      {anySize, "create-size", copes},
		"no long names":         {shortNames, "create-name", copes},
		"a new publish context": {func(w *world) { w.attach = newContext() }, "attach-again", copes},
		"attaches once":         {func(w *world) { w.attach = once() }, "attach-again", broken},
		"detached is unknown":   {func(w *world) { w.detach = func() error { return refuse("NotFound") } }, "detach", copes},
		"deletes once":          {deletesOnce, "delete-again", copes},
		"stacks stages":         {func(w *world) { w.stage = func(path string) error { w.stack(path); return nil } }, "stage-again", copes},
		"stages once":           {stagesOnce, "stage-again", copes},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tt.tune(w)
			odd, err := w.vet(t.Context(), plugintest.Ask{})
			if err != nil {
				t.Fatal(err)
			}
			if tt.want == ok && len(odd) > 0 || tt.want != ok && odd[tt.check].Verdict != tt.want {
				t.Errorf("found %+v, want %s to be %s", odd, tt.check, tt.want)
			}
			w.clean()
		})
	}
}

// TestEndNoticedLate checks the verdicts if the plugin's process ends during a call and the agent
// notices this late. Only the check that made the call must report a failure.
func TestEndNoticedLate(t *testing.T) {
	w := newWorld(t)
	staged, probes := false, 0
	w.stage = func(path string) error {
		if staged {
			w.mount(path)
			return nil
		}
		staged = true
		w.probe = func() (bool, error) {
			if probes++; probes < 3 {
				return false, refuse("Unavailable")
			}
			w.incarnation.Add(1)
			w.probe = nil
			return false, refuse("Unavailable")
		}
		return &volume.CallError{Step: "NodeStageVolume", Code: "Unavailable", Message: "EOF", Retry: volume.RetryBackoff}
	}
	odd, err := w.vet(t.Context(), plugintest.Ask{})
	if err != nil {
		t.Fatal(err)
	}
	if r := odd["stage"]; len(odd) != 1 || r.Verdict != plugintest.Broken || !strings.Contains(r.Said, "ended during this check") {
		t.Errorf("found %+v", odd)
	}
	w.clean()
}

func anotherEachTime(w *world) {
	n := 0
	w.create = func(r call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
		n++
		r.Name += strings.Repeat("'", n)
		return w.doCreate(r)
	}
}

func anySize(w *world) {
	w.create = func(r call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
		r.CapacityMin = 0
		return w.doCreate(r)
	}
}

func shortNames(w *world) {
	w.create = func(r call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
		if len(r.Name) > 63 {
			return call.CreateVolumeResult{}, refuse("InvalidArgument")
		}
		return w.doCreate(r)
	}
}

func newContext() func() (map[string]string, error) {
	n := 0
	return func() (map[string]string, error) {
		n++
		return map[string]string{"dev": strings.Repeat("x", n)}, nil
	}
}

func once() func() (map[string]string, error) {
	done := false
	return func() (map[string]string, error) {
		if done {
			return nil, refuse("FailedPrecondition")
		}
		done = true
		return nil, nil
	}
}

func deletesOnce(w *world) {
	w.remove = func(id string) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if _, ok := w.volumes[id]; !ok {
			return refuse("NotFound")
		}
		delete(w.volumes, id)
		return nil
	}
}

func (w *world) stack(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mounts[path]++
}

func stagesOnce(w *world) {
	w.stage = func(path string) error {
		if w.Look(context.Background(), path).Seen == volume.SeenMount {
			return refuse("FailedPrecondition")
		}
		w.mount(path)
		return nil
	}
}

// TestIntentFirst checks that the plugin test stores its record before each call that could leave
// something on the host or in the storage system.
func TestIntentFirst(t *testing.T) {
	w := newWorld(t)
	w.create = func(r call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
		if s := w.Scratch("p"); s == nil || !slices.ContainsFunc(s.Volumes, func(v plugin.ScratchVolume) bool { return v.Name == r.Name }) {
			t.Errorf("volume %q is not on record: %+v", r.Name, s)
		}
		return w.doCreate(r)
	}
	w.attach = func() (map[string]string, error) {
		if s := w.Scratch("p"); s == nil || s.NodeID != "n" || s.Volumes[0].ExternalID == "" || len(s.Targets) == 0 || s.Staging == "" {
			t.Errorf("what is about to be made is not on record: %+v", s)
		}
		return nil, nil
	}
	if _, err := w.vet(t.Context(), plugintest.Ask{}); err != nil {
		t.Fatal(err)
	}
	w.clean()
}

// TestNoRecordNoTest checks that the plugin test makes no calls if it cannot store its record.
func TestNoRecordNoTest(t *testing.T) {
	w := newWorld(t)
	w.saveErr = errors.New("no space left on device")
	if _, err := w.vet(t.Context(), plugintest.Ask{}); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("got %v", err)
	}
	if calls := slices.DeleteFunc(w.calls, func(c string) bool { return c == "save" }); len(calls) > 0 {
		t.Errorf("called %q", calls)
	}
}

// TestEnded cancels the plugin test after each of its checks, and also lets it time out. The plugin
// test must always undo its changes.
func TestEnded(t *testing.T) {
	for n := range plugintest.List() {
		w := newWorld(t)
		ctx, cancel := context.WithCancel(t.Context())
		told := 0
		_, err := w.service().Run(ctx, "p", plugintest.Ask{}, func(plugintest.Result) error {
			if told++; told > n {
				cancel()
			}
			return nil
		})
		cancel()
		if !errors.Is(err, context.Canceled) || told != len(plugintest.List()) {
			t.Errorf("after check %d: %v, %d results", n, err, told)
		}
		w.clean()
	}
	w := newWorld(t)
	if _, err := w.vet(t.Context(), plugintest.Ask{Timeout: time.Nanosecond}); !errors.Is(err, volume.ErrTimeout) {
		t.Errorf("got %v", err)
	}
	w.clean()
}

// TestCleansFirst checks that a new plugin test first undoes the leftovers of an interrupted test.
// The new test must fail if it cannot undo them. If the record contains a volume without its
// external id, the new test must find the volume by its name.
func TestCleansFirst(t *testing.T) {
	w := newWorld(t)
	w.volumes["volagent-test-old"] = 1
	w.scratch = &plugin.Scratch{ID: "old", Volumes: []plugin.ScratchVolume{{Name: "volagent-test-old"}}, Staging: w.dir + "/s/old", Targets: []string{w.dir + "/t/old"}}
	w.mounts[w.dir+"/s/old"], w.mounts[w.dir+"/t/old"] = 1, 2
	w.remove = func(string) error { return refuse("Internal") }
	_, err := w.vet(t.Context(), plugintest.Ask{})
	var e *volume.Error
	if !errors.As(err, &e) || !errors.Is(err, volume.ErrRefused) || !strings.Contains(suggest.Hint(e.Remedy, e.Hint), "--forget") || w.scratch == nil {
		t.Fatalf("got %v, record %+v", err, w.scratch)
	}
	w.remove = nil
	if odd, err := w.vet(t.Context(), plugintest.Ask{}); err != nil || len(odd) > 0 {
		t.Errorf("got %v, %v", odd, err)
	}
	if len(w.events) == 0 || w.events[0].Type != "plugin-test-cleaned" {
		t.Errorf("events %+v", w.events)
	}
	w.clean()

	w.scratch = &plugin.Scratch{ID: "old", Volumes: []plugin.ScratchVolume{{Name: "volagent-test-old", ExternalID: "volagent-test-old"}}}
	w.remove = func(id string) error {
		if id == "volagent-test-old" {
			return refuse("Internal")
		}
		delete(w.volumes, id)
		return nil
	}
	if _, err := w.vet(t.Context(), plugintest.Ask{Forget: true}); err != nil {
		t.Error(err)
	}
	w.clean()
}

// TestRefusals checks that a plugin test does not start if it could harm a volume or is not
// possible.
func TestRefusals(t *testing.T) {
	for name, tt := range map[string]struct {
		tune func(*world)
		ask  plugintest.Ask
		kind error
	}{
		"kill under a volume":    {func(w *world) { w.inUse = []string{"data"} }, plugintest.Ask{Kill: true}, volume.ErrRefused},
		"a registered volume":    {func(w *world) { w.owned = "data" }, plugintest.Ask{ExternalID: "x"}, volume.ErrRefused},
		"nothing to test with":   {func(w *world) { w.info.Caps.CreateDelete = false }, plugintest.Ask{}, volume.ErrRefused},
		"parameters are missing": {func(w *world) { w.create = noCreate }, plugintest.Ask{}, volume.ErrInvalid},
	} {
		w := newWorld(t)
		tt.tune(w)
		if _, err := w.vet(t.Context(), tt.ask); !errors.Is(err, tt.kind) {
			t.Errorf("%s: %v", name, err)
		}
		if slices.Contains(w.calls, "stage") || w.scratch != nil {
			t.Errorf("%s: called %q, record %+v", name, w.calls, w.scratch)
		}
	}
}

func noCreate(call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
	return call.CreateVolumeResult{}, refuse("InvalidArgument")
}

// TestDocumented checks that docs/drivers.md lists every check in order, with the description from
// this package.
func TestDocumented(t *testing.T) {
	f, err := os.Open("../../docs/drivers.md")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var got []plugintest.Check
	for lines := bufio.NewScanner(f); lines.Scan(); {
		cells := strings.Split(lines.Text(), "|")
		if len(cells) != 5 || !strings.HasPrefix(strings.TrimSpace(cells[1]), "`") {
			continue
		}
		got = append(got, plugintest.Check{ID: strings.Trim(strings.TrimSpace(cells[1]), "`"), Doc: strings.TrimSpace(cells[2])})
	}
	if want := plugintest.List(); !slices.Equal(got, want) {
		for _, c := range want {
			if !slices.Contains(got, c) {
				t.Errorf("missing, or in other words: | `%s` | %s |", c.ID, c.Doc)
			}
		}
		t.Errorf("the doc has %d checks, the package %d, or in another order", len(got), len(want))
	}
}
