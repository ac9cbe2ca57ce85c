package supervisor_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// another returns a condition that is true when another process has replaced the process in the
// given status.
func another(first supervisor.Status) func(supervisor.Status) bool {
	return func(st supervisor.Status) bool { return st.State == supervisor.Ready && st.PID != first.PID }
}

// TestKill checks that Kill ends a plugin like a crash. Kill must return an error while another
// volume uses the plugin, or if the agent does not run the plugin.
func TestKill(t *testing.T) {
	b := newBench(t)
	b.file("fake.yaml", b.fakeFile("", "health: {interval: 1h}\n"))
	b.start()
	first := b.await("fake", supervisor.Ready)
	b.inUse.Store(true)
	if err := b.sup.Kill("fake", "other"); !errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), `"data" is in use`) || !alive(first.PID) {
		t.Errorf("under a volume: %v", err)
	}
	if !b.sup.View("fake").Ready {
		t.Error("after the refusal it gives no client")
	}
	must(t, b.sup.Kill("fake", "data")) // the test's own volume must not prevent the kill
	b.awaitThat("fake", "another process", another(first))
	if st := b.status("fake"); alive(first.PID) || !strings.Contains(st.LastExit, "SIGKILL") {
		t.Errorf("after the kill: %+v", st)
	}
	if err := b.sup.Kill("none", ""); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("an unknown plugin: %v", err)
	}
	b.file("other.yaml", "id: other\nsocket: "+b.dir+"/none.sock\n")
	b.reload()
	b.await("other", supervisor.Unhealthy)
	if err := errors.Join(b.sup.MayKill("other"), b.sup.Kill("other", "")); !errors.Is(err, volume.ErrRefused) {
		t.Errorf("a plugin of somebody else's: %v", err)
	}
}

// TestScratchOutlives checks that the record of a test's objects is kept when the agent or the
// plugin's process ends.
func TestScratchOutlives(t *testing.T) {
	b := newBench(t)
	b.file("fake.yaml", b.fakeFile("", "health: {interval: 1h}\n"))
	b.start()
	first := b.await("fake", supervisor.Ready)
	must(t, b.sup.SaveScratch(within(t), "fake", &plugin.Scratch{ID: "x"}))
	must(t, b.sup.Kill("fake", ""))
	b.awaitThat("fake", "another process", another(first))
	recs, err := b.opts.Store.LoadPlugins()
	must(t, err)
	if i := slices.IndexFunc(recs, func(r plugin.Record) bool { return r.ID == "fake" }); i < 0 || recs[i].Scratch == nil || recs[i].Scratch.ID != "x" {
		t.Errorf("on record: %+v", recs)
	}
	if s := b.sup.Scratch("fake"); s == nil || s.ID != "x" {
		t.Errorf("left: %+v", s)
	}
	must(t, b.sup.SaveScratch(within(t), "fake", nil))
	if s := b.sup.Scratch("fake"); s != nil {
		t.Errorf("left: %+v", s)
	}
}
