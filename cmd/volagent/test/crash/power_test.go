package crash_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/crasher"
)

// TestCrashPower simulates a power cut at each commit and, with -crash.full, at each CSI call. The
// file system of the data dir loses all unsynced data, and all processes and mounts end. After the
// reboot, every acknowledged change must exist, and every other request must be complete or have no
// effect. The agent must mount the claimed volumes again without a request. The volumes are on
// another file system, like real storage, and lose no data.
func TestCrashPower(t *testing.T) {
	var count crashCount
	count.report(t)
	boot := harness.FakeBoots(t)
	for _, s := range scenarios() {
		if s.commits || !*crashFull && !s.every {
			continue // a forced deregister needs a mount in use, which a reboot ends
		}
		s.commits = !*crashFull
		t.Run(s.name, func(t *testing.T) {
			count.scenarios.Add(1)
			points := s.count(t)
			count.points.Add(int64(len(points)))
			r := s.rand("power")
			for i, name := range points {
				t.Run(fmt.Sprintf("at %d %s", i+1, name), func(t *testing.T) { s.powerCut(t, i+1, 0, boot, &count) })
				if name == "before commit" && (*crashFull || i == 0) {
					// The power fails at a random moment of the commit or shortly after it.
					later := time.Duration(r.IntN(1500)+1) * time.Microsecond
					t.Run(fmt.Sprintf("%s after %d", later, i+1), func(t *testing.T) { s.powerCut(t, i+1, later, boot, &count) })
				}
			}
		})
	}
}

// powerCut simulates a power cut at a point of the scenario or shortly after it. Then it simulates
// the reboot and checks that the agent recovers.
func (s scenario) powerCut(t *testing.T, at int, later time.Duration, boot func(*testing.T), count *crashCount) {
	h := newCrashHost(t, s.tune)
	h.orphans = s.orphans
	h.makeDisk()
	h.launch(true)
	h.Must(h.up())
	s.begin(h)

	pid := h.PluginPID("rec")
	h.order(crasher.Order{At: at, Agent: true, Plugin: pid, Commits: s.commits, PowerOf: filepath.Join(h.Dir, "d"), Later: later})
	err := s.act(h)
	if !h.dead() {
		t.Fatalf("the agent did not come to this point: %q, %v", h.points(), err)
	}
	count.kills.Add(1)
	count.plugins.Add(1)
	points := h.points()
	h.disarm()
	h.unmountAll()
	h.Must(os.RemoveAll(filepath.Join(h.Dir, "run")))
	h.starts++

	boot(t)
	h.mountDisk()
	h.records()
	h.launch(false)
	h.Must(h.up())
	count.recoveries.Add(1)
	if !s.rough {
		h.settle()
	}
	isDone := s.done(h)
	switch bound := committed(points) >= s.binding; {
	case later == 0 && bound != isDone:
		t.Errorf("it is done: %v; points: %q", isDone, points)
	case (bound || err == nil) && !isDone:
		t.Errorf("it was acknowledged and is not done; points: %q, answer: %v", points, err)
	}
	s.repeat(h, isDone)
	s.outcome(h, h.mountsOf(s.keeps), h.PluginPID("rec"))
}

// makeDisk creates an ext4 file system that contains only the data dir.
func (h *crashHost) makeDisk() {
	h.T.Helper()
	image := filepath.Join(h.Dir, "disk")
	h.Must(os.WriteFile(image, nil, 0o600))
	h.Must(os.Truncate(image, 64<<20))
	h.run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,nodiscard", image)
	h.Must(os.Mkdir(filepath.Join(h.Dir, "d"), 0o711))
	h.mountDisk()
}

func (h *crashHost) mountDisk() {
	h.T.Helper()
	h.run("mount", "-o", "loop", filepath.Join(h.Dir, "disk"), filepath.Join(h.Dir, "d"))
}

func (h *crashHost) run(argv ...string) {
	h.T.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		h.T.Fatalf("%q: %v\n%s", argv, err, out)
	}
}

// unmountAll unmounts all mounts below the host's directory, starting with the newest. It retries,
// because a killed process may keep a file open for a moment.
func (h *crashHost) unmountAll() {
	h.T.Helper()
	for _, line := range slices.Backward(slices.Collect(harness.Lines(h.Mounts()))) {
		at := strings.Fields(line)[4]
		h.Await("the unmount of "+at, func() bool {
			err := syscall.Unmount(at, 0)
			if !errors.Is(err, syscall.EBUSY) {
				h.Must(err)
			}
			return err == nil
		})
	}
}
