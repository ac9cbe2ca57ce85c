package main_test

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestScripts runs the built binaries as a user would. Each file of testdata/script runs on its own
// host. In addition to testscript's own commands, the scripts have these commands:
//
//	exits CODE PROGRAM ARG…   the program must end with that exit code
//	agent kill|stop|start     kill -9 the agent, stop it cleanly, start it again
//	mounted PATH, ! mounted   whether a path is a mount point
//	nomounts                  nothing is mounted below the host's directory
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			h := newHost(t)
			h.start("local")
			testscript.Run(t, testscript.Params{
				Files: []string{file},
				Setup: func(env *testscript.Env) error {
					env.Setenv("VOLCTL_SOCKET", h.socket())
					env.Setenv("PATH", binDir+":"+env.Getenv("PATH"))
					env.Setenv("HOST", h.dir)
					return nil
				},
				Cmds: map[string]func(*testscript.TestScript, bool, []string){
					"exits": exits, "agent": h.scriptAgent, "mounted": mounted, "nomounts": h.scriptNoMounts,
				},
			})
		})
	}
}

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

func (h *host) scriptAgent(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: agent kill|stop|start")
	}
	switch args[0] {
	case "kill":
		h.kill()
	case "stop":
		ts.Check(h.signal(syscall.SIGTERM))
	case "start":
		h.start("local")
	default:
		ts.Fatalf("unknown: agent %s", args[0])
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

func (h *host) scriptNoMounts(ts *testscript.TestScript, _ bool, _ []string) {
	if left := h.mounts(); left != "" {
		ts.Fatalf("still mounted:\n%s", left)
	}
}
