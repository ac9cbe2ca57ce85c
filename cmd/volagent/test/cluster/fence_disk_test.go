package cluster_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/lab"
	"github.com/volagent/volagent/volmgr/shared"
)

// TestReturnOnFullDisk takes the volume of host h1 over, and fills the disk of h1 before h1 reaches the
// cluster again. Host h1 cannot record that it has lost the volume, so it does not register, and its status
// says why. It neither gives its claim up nor calls the controller. It continues without a command when the
// disk has space. (I1, I3, I4)
func TestReturnOnFullDisk(t *testing.T) {
	for _, c := range []struct {
		name string
		lose func(*loss)
		back func(*loss)
	}{
		{"rebooted", (*loss).powerOff, func(l *loss) {
			l.Isolate(l.a)
			l.reboot()
		}},
		{"cut off", (*loss).partition, (*loss).awaitWriteError},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := fencing{driver: attachAndStage, plugin: []string{`"fence": "detach"`}, smallDisks: true}.start(t)
			c.lose(l)
			l.awaitGone()
			l.mark = 0
			path := l.expectTakeover("h1", shared.ProvenDetach)
			c.back(l)

			free := fillDisk(l.a)
			l.Heal()
			awaitWords(l.a, "a full disk", "cannot write the state database")
			awaitWords(l.a, "a full disk", "no space left on device")
			if hostOf(l.b, "h1").Alive || !slices.Equal(l.a.Claims(), []string{"db web"}) {
				t.Errorf("on a full disk, h1 is alive %v, and has the claims %v", hostOf(l.b, "h1").Alive, l.a.Claims())
			}
			refused(t, l.a.Try("volume", "claim", "db", "--alloc", "new", "--timeout", "2s").Err, "no space left on device")
			l.b.MustRun("sh", "-c", `echo more >> "$1"`, "sh", filepath.Join(path, "owner"))

			free()
			l.awaitLost()
			if l.a.On() && l.writer != nil && !l.writer.Ended() {
				l.a.Must(l.writer.Kill())
			}
			l.b.Await("the registration of h1", func() bool { return hostOf(l.b, "h1").Alive })
			l.expectLost()
			l.b.Volctl("volume", "detach", "db", "web", "--timeout", "60s")
			l.reuse()
			l.expectNoLeftover()
			l.a.Stop()
			l.a.CheckDB()
		})
	}
}

// TestFenceOnFullDisk loses host h1, while the disks of all other hosts are full. The hook writes much
// output. The fencing needs no disk: the cluster gets the proof, and h1 loses its hold. The claim on h2 needs
// the disk. It says so, and gets the volume when there is space. (I1, I3, I4, I8)
func TestFenceOnFullDisk(t *testing.T) {
	t.Parallel()
	const talks = "i=0; while [ $i -lt 300 ]; do echo the switch talks a lot; i=$((i+1)); done\n" +
		"case $1 in status) echo off; exit 2 ;; esac\n"
	l := fencing{driver: attachAndStage, plugin: []string{`"fence": "hook"`}, hook: talks, smallDisks: true}.start(t)
	l.write()
	claimed := l.await()
	l.b.Await("the claim that waits", func() bool { return slices.Contains(l.b.Claims(), "db web") })
	free := []func(){fillDisk(l.b), fillDisk(l.c)}
	l.a.PowerOff()

	l.b.Await("the proof", func() bool { return len(l.proofIfAny("h1").Drops) == 1 })
	l.b.Await("the error of the disk", func() bool {
		return strings.Contains(l.b.Volctl("volume", "status", "db"), "no space left on device")
	})
	if calls := (&rig{t: t, san: l.san}).attachedBy("csi-h2"); len(calls) > 0 {
		t.Errorf("host h2 attaches the volume, and cannot record it: %v", calls)
	}
	if len(claimed) > 0 {
		t.Errorf("on a full disk, the claim on h2 ended with %+v", <-claimed)
	}

	for _, end := range free {
		end()
	}
	path := l.expectTaken(<-claimed, "h1", shared.ProvenHook)
	if p := l.proof("h1"); len(p.Hooks) != 1 || p.Hooks[0].Name != "power" {
		t.Errorf("the proof names the hooks %+v", p.Hooks)
	}
	l.reboot()
	l.b.Await("the registration of h1", func() bool { return hostOf(l.b, "h1").Alive })
	l.b.MustRun("sh", "-c", `echo more >> "$1"`, "sh", filepath.Join(path, "owner"))
	l.expectLost()
	l.b.Volctl("volume", "detach", "db", "web", "--timeout", "60s")
	l.reuse()
	l.expectNoLeftover()
	for _, h := range l.Hosts {
		h.Stop()
		h.CheckDB()
	}
}

// addSmallDisk gives a host without an agent a small disk for its data directory. The disk survives a loss
// of the power, because it is mounted outside the host as well.
func addSmallDisk(h *lab.Host) {
	h.T.Helper()
	h.PowerOff()
	data := filepath.Join(h.Dir, "d")
	h.Must(os.Mkdir(data, 0o711))
	h.Must(syscall.Mount("tmpfs", data, "tmpfs", 0, "size=8m,mode=711"))
	h.T.Cleanup(func() { h.Must(syscall.Unmount(data, syscall.MNT_DETACH)) })
	h.PowerOn()
}

// fillDisk fills the disk of a host whose agent runs. The state database has free pages on a full disk too,
// so its writes fail as if it had none. The result free removes the cause.
func fillDisk(h *lab.Host) (free func()) {
	h.T.Helper()
	ballast := filepath.Join(h.Dir, "d", "ballast")
	h.Must(harness.FillFileSystem(ballast))
	end := harness.FailSyscall(h.Host, "pwrite64", "ENOSPC")
	return func() {
		h.T.Helper()
		h.Must(os.Remove(ballast))
		end()
	}
}
