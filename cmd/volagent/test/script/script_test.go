package script_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// TestScripts runs the built binaries as a user would. Each file of testdata runs on its own
// host. In addition to testscript's own commands, the scripts have these commands:
//
//	exits CODE PROGRAM ARG…   the program must end with that exit code
//	agent kill|stop|start|reload   kill -9 the agent, stop it cleanly, start it again, reload it
//	mounted PATH, ! mounted   whether a path is a mount point
//	nomounts                  nothing is mounted below the host's directory
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			h := harness.NewHost(t)
			h.MoreArgs = []string{"--classes-dir", filepath.Join(h.Dir, "classes.d")}
			h.Start("local")
			testscript.Run(t, testscript.Params{
				Files: []string{file},
				Setup: func(env *testscript.Env) error {
					env.Setenv("VOLCTL_SOCKET", h.Socket())
					env.Setenv("PATH", harness.BinDir+":"+env.Getenv("PATH"))
					env.Setenv("HOST", h.Dir)
					return nil
				},
				Cmds: map[string]scriptCommand{
					"exits": exits, "agent": scriptAgent(h), "mounted": mounted, "nomounts": scriptNoMounts(h),
				},
			})
		})
	}
}

// scriptCommand runs one command of a script.
type scriptCommand = func(ts *testscript.TestScript, neg bool, args []string)

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d instead of %d", got, want)
	}
}

func scriptAgent(h *harness.Host) scriptCommand {
	return func(ts *testscript.TestScript, _ bool, args []string) {
		if len(args) != 1 {
			ts.Fatalf("usage: agent kill|stop|start|reload")
		}
		switch args[0] {
		case "kill":
			h.Kill()
		case "stop":
			ts.Check(h.Signal(syscall.SIGTERM))
		case "start":
			h.Start("local")
		case "reload":
			ts.Check(h.Cmd.Process.Signal(syscall.SIGHUP))
		default:
			ts.Fatalf("unknown: agent %s", args[0])
		}
	}
}

func mounted(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: mounted PATH")
	}
	is := exec.Command("mountpoint", "-q", ts.MkAbs(args[0])).Run() == nil
	if is == neg {
		ts.Fatalf("%s: mounted is %v", args[0], is)
	}
}

func scriptNoMounts(h *harness.Host) scriptCommand {
	return func(ts *testscript.TestScript, _ bool, _ []string) {
		if left := h.Mounts(); left != "" {
			ts.Fatalf("still mounted:\n%s", left)
		}
	}
}

// TestOneFolder checks that these tests hold the lock that prevents other test folders from running
// at the same time.
func TestOneFolder(t *testing.T) {
	f, err := os.Open("..")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("another folder could start its tests: %v", err)
	}
}
