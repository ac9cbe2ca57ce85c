package supervisor_test

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/supervisor"
)

// TestRefusedProcessEnds checks a refused plugin that volumes use. The agent must not stop its
// process. When the process ends, the agent must start another one, which must identify itself.
func TestRefusedProcessEnds(t *testing.T) {
	b := newBench(t)
	b.file("fake.yaml", b.fakeFile("", ""))
	b.start()
	b.await("fake", supervisor.Ready)
	b.stop()
	kill(t, b.starts()[0])
	b.inUse.Store(true)
	b.set("driver", "other.test")
	b.start()
	b.await("fake", supervisor.Failed)
	if !alive(b.starts()[1]) {
		t.Error("it was stopped under a volume")
	}
	b.unset("driver")
	kill(t, b.starts()[1])
	b.await("fake", supervisor.Ready)
	if got := len(b.starts()); got != 3 {
		t.Errorf("there were %d starts", got)
	}
}

// kept is a listener that stays open when a server ends, like a socket that systemd opened.
type kept struct{ *net.UnixListener }

// Close ends the Accept call of the server, but leaves the listener open.
func (k kept) Close() error { return k.SetDeadline(time.Now()) }

// serve starts a server on the listener.
func (k kept) serve(b *bench) (stop func()) {
	must(b.t, k.SetDeadline(time.Time{}))
	return b.serveAt(k)
}

// TestRefusedBehindKeptSocket checks a refused plugin whose socket stays open when the plugin ends.
// The next server on the socket must identify itself.
func TestRefusedBehindKeptSocket(t *testing.T) {
	b := newBench(t)
	socket := filepath.Join(b.dir, "x.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	always := kept{l}
	b.file("x.yaml", "id: x\nsocket: "+socket+"\n"+quick)
	stop := always.serve(b)
	b.start()
	b.await("x", supervisor.Ready)
	b.stop()
	stop()
	b.set("driver", "other.test")
	stop = always.serve(b)
	b.start()
	if st := b.await("x", supervisor.Failed); !strings.Contains(st.Reason, "other.test") {
		t.Errorf("reason %q", st.Reason)
	}
	stop()
	b.unset("driver")
	always.serve(b)
	b.await("x", supervisor.Ready)
}
