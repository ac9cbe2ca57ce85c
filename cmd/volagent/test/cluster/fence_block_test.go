package cluster_test

import (
	"os"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

// TestTakeoverOfBlockDevice loses host h1, which writes to a volume as a block device. Host h2 takes the
// device over by a detach, and reads the data of h1. The SAN accepts no later write of h1. Host h1 comes back,
// undoes its device, and can use the volume again. (I1, I3, I4)
func TestTakeoverOfBlockDevice(t *testing.T) {
	for _, c := range []struct {
		name string
		lose func(*loss)
		back func(*loss)
	}{
		{"switched off", func(l *loss) { l.a.PowerOff() }, (*loss).reboot},
		{"cut off", func(l *loss) { l.Isolate(l.a) }, func(l *loss) {
			l.awaitWriteError()
			l.Heal()
			l.awaitLost()
			l.a.Must(l.writer.Kill())
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			block := "capabilities: [{access_mode: single-node-multi-writer, attachment_mode: block-device}]"
			l := fencing{driver: attachAndStage, plugin: []string{`"fence": "detach"`}, access: block}.start(t)
			l.writeDevice()
			c.lose(l)
			l.awaitGone()
			l.mark = 0
			path := claim(l.b.Host, "db", "web", "--timeout", "90s")
			if text := readDevice(l, path, "0"); text != "h1" {
				t.Errorf("host h2 reads %q", text)
			}
			l.b.MustRun("sh", "-c", writesDevice, "sh", path, "h2", "1")
			l.expectOrder()
			if p := l.proof("h1"); len(p.Drops) != 1 || p.Drops[0].Kind != shared.ProvenDetach {
				t.Errorf("the proof is %+v", p)
			}

			c.back(l)
			l.b.Await("the registration of h1", func() bool { return hostOf(l.b, "h1").Alive })
			l.expectLost()
			l.a.Await("the end of the device of h1", func() bool { return len(l.sessions("csi-h1")) == 0 })
			l.b.Volctl("volume", "detach", "db", "web", "--timeout", "60s")
			path = claim(l.a.Host, "db", "web", "--timeout", "60s")
			if text := l.a.MustRun("sh", "-c", readsDevice, "sh", path, "1"); text != "h2" {
				t.Errorf("host h1 reads %q", text)
			}
			l.a.Volctl("volume", "detach", "db", "web", "--timeout", "60s")
			l.expectNoLeftover()
		})
	}
}

// These shell commands write a text to a block of a device, and read it.
const (
	writesDevice = `printf %s "$2" | dd of="$1" bs=4096 seek="$3" conv=sync,notrunc,fsync oflag=direct status=none`
	readsDevice  = `dd if="$1" bs=4096 skip="$2" count=1 iflag=direct status=none | tr -d '\0'`
)

// readDevice reads a block of a device on h2.
func readDevice(l *loss, path, block string) string {
	l.t.Helper()
	return l.b.MustRun("sh", "-c", readsDevice, "sh", path, block)
}

// writeDevice claims the volume on h1 as a block device, and starts a process there that writes to the open
// device all the time.
func (l *loss) writeDevice() {
	l.t.Helper()
	path := claim(l.a.Host, "db", "web")
	said, err := os.Create(l.said())
	l.a.Must(err)
	defer said.Close()
	l.writer = l.a.Spawn(said, "sh", "-c", `exec 3<> "$1"; while :; do `+strings.Replace(writesDevice, "$2", "h1", 1)+`; sleep 0.1; done`, "sh", path, "", "0")
	l.a.Await("writes of h1", func() bool { return len(l.san.Writes("disk-db")) > 2 })
	l.lost = true
}

// sessions returns the mounts and devices of a node that the SAN serves.
func (l *loss) sessions(node string) (all []san.Session) {
	for _, s := range l.san.Sessions() {
		if s.Node == node {
			all = append(all, s)
		}
	}
	return all
}
