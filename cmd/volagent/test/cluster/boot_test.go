package cluster_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest/san"
)

// TestBootWithoutEtcd reboots a host while etcd is stopped. The host mounts the volume with "boot:
// trust-local" again, and serves further claims of it. A volume without this line waits, and says why.
// When etcd answers again, both volumes have verified holds, and other hosts can use them.
//
// In the meantime, a person may have stated that the host is gone. The host then loses the hold that it
// has trusted, and unmounts the volume.
func TestBootWithoutEtcd(t *testing.T) {
	boot := harness.FakeBoots(t)
	t.Run("verified", func(t *testing.T) {
		r, a := bootAlone(t, boot)
		r.etcd.Start(0)
		for _, id := range []string{"trusting", "waiting"} {
			a.Volctl("wait", "--volume", id, "--for", "mounted", "--timeout", "60s")
		}
		a.Await("the verification of the hold", func() bool { return !strings.Contains(a.Volctl("volume", "status", "trusting"), unconfirmed) })
		a.ExpectOutput("hold-trusted", "events")
		for _, h := range r.hosts {
			h.Must(write(h, claim(h, "trusting", "last", "--timeout", "60s"), "f", "x"))
		}
	})
	t.Run("lost", func(t *testing.T) {
		r, a := bootAlone(t, boot)
		a.Kill()
		r.etcd.Start(0)
		b := r.hosts[1]
		b.Await("the replacement", func() bool {
			return b.Try("node", "replace", "h1", "--reason", "test", "-y").Code == 0
		})
		a.Start("san")
		a.Await("the end of the mounts", func() bool { return !strings.Contains(a.Mounts(), "/trusting") })
		a.ExpectOutput("hold-lost", "events")
		claim(b, "waiting", "web", "--timeout", "60s")
	})
}

// unconfirmed is shown while a host relies on its own record of a hold.
const unconfirmed = "has not confirmed the hold of this host"

// bootAlone mounts two volumes on the first of two hosts, and reboots this host while etcd is stopped.
func bootAlone(t *testing.T, boot func(*testing.T)) (*rig, *harness.Host) {
	t.Helper()
	r := newRig(t, 1, 2, san.Config{NodeOnly: true, Stage: true})
	a := r.hosts[0]
	a.ExpectNoMounts()
	for _, id := range []string{"trusting", "waiting"} {
		trust := map[string]string{"trusting": "boot: trust-local"}[id]
		r.share(id, mode("multi-node-multi-writer"), trust)
		a.Must(write(a, claim(a, id, "web"), "f", "before"))
	}

	r.etcd.Stop(0)
	reboot(t, a, boot)
	a.Start("san")
	a.Volctl("wait", "--volume", "trusting", "--for", "mounted", "--timeout", "60s")
	path := claim(a, "trusting", "more")
	if text := read(a, path, "f"); text != "before" {
		t.Errorf("the trusting volume contains %q", text)
	}
	a.Must(write(a, path, "f", "x"))
	a.ExpectOutput("does not answer", "volume", "status", "waiting")
	a.ExpectOutput(unconfirmed, "volume", "status", "trusting")
	a.ExpectOutput("not usable since", "node", "status")
	if strings.Contains(a.Mounts(), "/waiting") {
		t.Errorf("the waiting volume is mounted:\n%s", a.Mounts())
	}
	return r, a
}

// reboot ends the processes and the mounts of a host, and gives the tests another boot id.
func reboot(t *testing.T, h *harness.Host, boot func(*testing.T)) {
	t.Helper()
	h.Kill()
	h.StopPlugins()
	for _, line := range slices.Backward(slices.Collect(harness.Lines(h.Mounts()))) {
		h.Must(syscall.Unmount(strings.Fields(line)[4], 0))
	}
	h.Must(os.RemoveAll(filepath.Join(h.Dir, "run")))
	boot(t)
}
