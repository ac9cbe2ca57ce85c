package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/lab"
	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

// TestQuarantine stops the agent, the plugin and a writer of host h1, which has changed pages of a file
// that are not yet on the storage. Host h2 takes the volume over. Then everything on h1 continues: no byte
// of it reaches the storage, and the writer gets an error. The writer keeps the volume mounted, so h1
// registers without it, and is in quarantine until the writer has ended. (I1, I3, I4)
func TestQuarantine(t *testing.T) {
	t.Parallel()
	l := fencing{driver: attachAndStage, plugin: []string{`"fence": "detach"`}}.start(t)
	stopped := l.stopAll()
	l.awaitGone()
	l.mark = 0
	path := l.expectTakeover("h1", shared.ProvenDetach)
	l.b.MustRun("sh", "-c", `echo more >> "$1"`, "sh", filepath.Join(path, "owner"))

	for _, pid := range slices.Backward(stopped) {
		l.a.Must(syscall.Kill(pid, syscall.SIGCONT))
	}
	l.expectSaid("the synchronisation ended with: sync", "input/output error")
	l.expectSaid("a write ended with: write", "input/output error")
	l.awaitLost()
	l.b.Await("the registration of h1", func() bool { return hostOf(l.b, "h1").Alive })
	l.expectQuarantine(true)
	l.b.Volctl("volume", "detach", "db", "web", "--timeout", "60s")
	l.b.ExpectRefusal(4, `volume "db" is still mounted on host "h1", which has lost it`, "node", "unfence", "h1")
	l.b.ExpectRefusal(4, `has volume "db" mounted, which it has lost`, "node", "fence-test", "h1", "--off")
	refused(t, l.a.Try("volume", "claim", "db", "--alloc", "new", "--timeout", "2s").Err, `lost its hold on volume "db", and is unmounting it`)
	if l.writer.Ended() {
		t.Error("the writer has ended by itself")
	}
	l.expectSilence()

	l.a.Must(l.writer.Kill())
	l.expectQuarantine(false) // no command is necessary
	l.reuse()
	l.expectNoLeftover()
}

// stopAll starts a writer on h1, and then stops the agent, the plugin and the writer. It returns their
// pids.
func (l *loss) stopAll() (pids []int) {
	l.t.Helper()
	path := claim(l.a.Host, "db", "web")
	self, err := os.Executable()
	l.a.Must(err)
	said, err := os.Create(l.said())
	l.a.Must(err)
	defer said.Close()
	l.writer = l.a.Spawn(said, "env", pageWriter+"="+filepath.Join(path, "pages"), self)
	l.expectSaid("changed pages")
	l.lost = true

	pids = append(l.a.PluginPIDs(), l.a.Cmd.Process.Pid, l.writer.Pid)
	if len(pids) < 3 {
		l.t.Fatalf("host h1 has the processes %v", pids)
	}
	for _, pid := range slices.Backward(pids) {
		l.a.Must(syscall.Kill(pid, syscall.SIGSTOP))
	}
	return pids
}

// expectSaid waits until a line of the writer contains all given words.
func (l *loss) expectSaid(words ...string) {
	l.t.Helper()
	l.b.Await(fmt.Sprintf("a line of the writer with %q", words), func() bool {
		raw, err := os.ReadFile(l.said())
		l.b.Must(err)
		for line := range strings.Lines(string(raw)) {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
				return true
			}
		}
		return false
	})
}

// expectQuarantine waits until another host shows whether h1 has a volume in quarantine.
func (l *loss) expectQuarantine(is bool) {
	l.t.Helper()
	var want []string
	if is {
		want = []string{"db"}
	}
	l.b.Await(fmt.Sprintf("the quarantine %v of h1", want), func() bool { return slices.Equal(statusOfHost(l.b, "h1").Quarantined, want) })
	if out := l.c.Volctl("node", "status", "h1"); strings.Contains(out, "Quarantined") != is {
		l.t.Errorf("the status of h1 is\n%s", out)
	}
}

// statusOfHost returns a host of the cluster with all details.
func statusOfHost(h *lab.Host, name string) api.ClusterHost {
	h.T.Helper()
	return harness.Decode[api.ClusterHost](h.Host, "node", "status", name)
}

// TestLyingDriver loses host h1, which still writes. Its driver answers that h1 is detached, and still
// lists it. Host h2 does not get the volume until the driver has really detached h1. (I1, I3)
func TestLyingDriver(t *testing.T) {
	t.Parallel()
	driver := attachAndStage
	driver.PublishedNodes = true
	l := fencing{driver: driver, plugin: []string{`"fence": "detach"`}}.start(t)
	l.pause()
	tell := l.san.LieAboutDetach("csi-h1")
	claimed := l.await()
	l.expectAnswer(`the driver answers that node "csi-h1" is detached, and still lists it`)
	if p := l.proofIfAny("h1"); len(p.Drops) > 0 {
		t.Errorf("without a proof, the cluster has recorded %+v", p)
	}
	if n := len(l.of(l.mark, func(e san.Event) bool { return e.Kind == san.KindWrite && e.Node == "csi-h1" })); n == 0 {
		t.Error("host h1 does not write")
	}

	tell()
	l.expectTaken(<-claimed, "h1", shared.ProvenDetach)
	l.awaitWriteError()
	l.expectSilence()
}
