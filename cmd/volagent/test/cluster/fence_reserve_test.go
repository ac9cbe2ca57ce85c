package cluster_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

// reservationHook is a fence hook that leaves the host on. It cuts the host off from the storage with a
// reservation, and asks the storage for the reservation. The storage is reserveStorage.
const reservationHook = `case $1 in
off) echo "$2" > POWER/reserve; until [ -e POWER/reserved ]; do sleep 0.05; done ;;
status) if [ -e POWER/reserved ]; then echo off; exit 2; fi ;;
on) echo "$2" > POWER/release; while [ -e POWER/reserved ]; do sleep 0.05; done ;;
esac
`

// TestFenceByReservation cuts host h1 from the network, while it writes to a volume without an attachment. A
// hook reserves the storage against h1, and h2 takes the volume over. Host h1 runs all the time: its writes
// fail, and it registers again without the volume when it reaches the cluster. It has no access to the
// storage until a person unfences it. That is refused while h1 has the lost volume mounted. (I1, I3, I4)
func TestFenceByReservation(t *testing.T) {
	t.Parallel()
	l := fencing{driver: san.Config{NodeOnly: true, Stage: true}, plugin: []string{`"fence": "hook"`}, hook: reservationHook}.start(t)
	l.reserveStorage()
	shareOn(l.b.Host, l.san, "other", mode("single-node-multi-writer"))
	l.partition()
	got := <-l.await()
	if got.Code != 0 {
		t.Fatalf("the claim on h2 ended with %d: %s", got.Code, got.Err)
	}
	path := strings.TrimSpace(got.Out)
	l.b.MustRun("sh", "-c", `echo h2 > "$1"`, "sh", filepath.Join(path, "owner"))
	l.expectReserved()
	if p := l.proof("h1"); p.Kind != shared.ProvenHook || len(p.Drops) != 1 || p.Drops[0].Kind != shared.ProvenHook {
		t.Errorf("the proof is %+v", p)
	}

	l.heal() // kills the writer after the refusal to unfence
	l.b.Await("the registration of h1", func() bool { return hostOf(l.b, "h1").Alive })
	l.b.MustRun("sh", "-c", `echo more >> "$1"`, "sh", filepath.Join(path, "owner"))
	l.a.Await("the end of the mounts of h1", func() bool { return !strings.Contains(l.a.Mounts(), "san:") })
	l.b.Volctl("volume", "detach", "db", "web", "--timeout", "60s")
	l.a.ExpectRefusal(5, `node "csi-h1" is cut off`, "volume", "claim", "other", "--alloc", "web", "--timeout", "3s")
	l.a.Volctl("volume", "detach", "other", "web", "--ignore-not-found", "--timeout", "60s")

	mustSay(t, "the answer to unfence", l.b.Volctl("node", "unfence", "h1"), "host h1 has its access back; hooks: power")
	path = claim(l.a.Host, "db", "web", "--timeout", "60s")
	if text := l.a.MustRun("cat", filepath.Join(path, "owner")); text != "h2\nmore" {
		t.Errorf("host h1 reads %q", text)
	}
	l.a.MustRun("sh", "-c", `echo again > "$1"`, "sh", filepath.Join(path, "again"))
	l.a.Volctl("volume", "detach", "db", "web", "--timeout", "60s")
	l.expectReserved()
	l.expectNoLeftover()
}

// reserveStorage answers reservationHook until the end of the test, as the management of the storage does.
func (l *loss) reserveStorage() {
	l.t.Helper()
	reserved := l.power("reserved")
	taken := func(name string) bool {
		err := os.Remove(l.power(name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			l.t.Error(err)
		}
		return err == nil
	}
	done := make(chan struct{})
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			if taken("reserve") {
				l.san.CutOff("csi-h1")
				if err := os.WriteFile(reserved, nil, 0o600); err != nil {
					l.t.Error(err)
				}
			}
			if taken("release") {
				l.san.RestoreNode("csi-h1")
				if err := os.Remove(reserved); err != nil {
					l.t.Error(err)
				}
			}
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	l.t.Cleanup(func() {
		close(done)
		serving.Wait()
	})
}

// expectReserved asserts that the SAN has accepted no write of h1 while it was reserved against h1, and no
// write of h2 before that.
func (l *loss) expectReserved() {
	l.t.Helper()
	cut, released := int64(0), int64(0)
	for _, e := range l.san.Events() {
		switch {
		case e.Kind == san.KindCut:
			cut = e.Seq
		case e.Kind == san.KindRestore:
			released = e.Seq
		case e.Kind == san.KindWrite && e.Node == "csi-h1" && cut > released:
			l.t.Errorf("the SAN is reserved against h1, and has accepted %v", e)
		case e.Kind == san.KindWrite && e.Node == "csi-h2" && cut == 0:
			l.t.Errorf("the SAN is not reserved against h1, and has accepted %v", e)
		}
	}
	if cut == 0 {
		l.t.Error("the SAN was never reserved")
	}
}
