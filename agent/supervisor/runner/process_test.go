package runner

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/proc"
)

func TestStat(t *testing.T) {
	// If the session leader is outside this pid namespace, Getsid returns 0.
	session, err := unix.Getsid(0)
	if err != nil {
		t.Fatal(err)
	}
	st, err := proc.ReadStat(os.Getpid())
	if err != nil || !st.Alive() || st.Start == 0 || st.Session != session {
		t.Errorf("got %+v, %v, want session %d", st, err, session)
	}
	if _, err := proc.ReadStat(0); err == nil {
		t.Error("there is a process 0")
	}
	if p, err := OpenProcess(os.Getpid(), st.Start+2, Reap); p != nil || err != nil {
		t.Errorf("another process with the pid: %v, %v", p, err)
	}
	if p, err := OpenProcess(1<<22, 1, Reap); p != nil || err != nil {
		t.Errorf("no such process: %v, %v", p, err)
	}
}
