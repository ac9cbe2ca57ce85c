package supervisor_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr/plugin"
)

// dieingStore is a store that kills its own process at its nth save, either before or after it
// saves the record.
type dieingStore struct {
	*memStore
	left  int
	after bool
}

func (s *dieingStore) SavePlugin(ctx context.Context, rec plugin.Record) error {
	s.left--
	if s.left == 0 && !s.after {
		die()
	}
	err := s.memStore.SavePlugin(ctx, rec)
	if s.left == 0 {
		die()
	}
	return err
}

// die kills this process with SIGKILL.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// fakeAgent runs a supervisor until its process is killed.
func fakeAgent(dir string) int {
	s := &dieingStore{memStore: &memStore{recs: map[string][]byte{}, path: dir + "/store.json"}}
	if err := s.load(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if _, err := fmt.Sscan(os.Getenv("FAKE_AGENT_DIES"), &s.left, &s.after); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	opts := options(dir)
	opts.Store = s
	if err := supervisor.New(opts).Run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return 1
}

// TestAgentKilledAnywhere kills several agents one after another, each before or after one of its
// writes. In every case, exactly one process of the plugin must run, and the last agent must serve
// it.
func TestAgentKilledAnywhere(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The agent saves three times: the intent, the pid, and the report of the plugin.
	for save := 1; save <= 3; save++ {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("save %d, after %v", save, after), func(t *testing.T) {
				b := newBench(t)
				b.path = b.dir + "/store.json"
				b.file("fake.yaml", b.fakeFile("", ""))
				cmd := exec.Command(exe)
				cmd.Env = append(os.Environ(), envAgent+"="+b.dir, fmt.Sprintf("FAKE_AGENT_DIES=%d %v", save, after))
				out, err := cmd.CombinedOutput()
				if err == nil || !strings.Contains(err.Error(), "killed") {
					t.Fatalf("the agent was not killed: %v\n%s", err, out)
				}
				if err := b.load(); err != nil {
					t.Fatal(err)
				}
				b.start()
				st := b.await("fake", supervisor.Ready)
				if starts := b.starts(); len(starts) != 1 || starts[0] != st.PID {
					t.Fatalf("started %v, and %d is served", starts, st.PID)
				}
				// The plugin is not a child of this process, but the agent must notice its end
				// anyway.
				if err := syscall.Kill(st.PID, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				now := b.awaitThat("fake", "another process", func(now supervisor.Status) bool {
					return now.State == supervisor.Ready && now.PID != st.PID
				})
				forked := save > 1
				if unknown := strings.Contains(now.LastExit, "unknown status"); unknown != forked {
					t.Errorf("last exit %q", now.LastExit)
				}
			})
		}
	}
}
