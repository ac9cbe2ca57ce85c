package report_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// hintOf returns the hint in the error output of volctl.
func hintOf(r harness.Result) string {
	for line := range strings.Lines(r.Err) {
		if hint, is := strings.CutPrefix(line, "hint: "); is {
			return strings.TrimSpace(hint)
		}
	}
	return ""
}

// followHints runs the hint of a refused command in a shell, as a user would. If the hinted command
// is refused with another hint, followHints runs the next hint, and so on until a command succeeds.
func followHints(h *harness.Host, r harness.Result) {
	h.T.Helper()
	seen := map[string]bool{}
	for r.Code != 0 {
		hint := hintOf(r)
		if hint == "" || seen[hint] {
			h.T.Fatalf("no way on from exit %d:\n%s", r.Code, r.Err)
		}
		seen[hint] = true
		r = runShell(h, hint)
	}
}

// runShell runs a command line in a shell and returns its result.
func runShell(h *harness.Host, line string) harness.Result {
	h.T.Helper()
	cmd := exec.Command("sh", "-c", line)
	cmd.Env, cmd.Dir = h.Env, h.Dir
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run() // the exit code shows whether the command failed
	return harness.Result{Out: out.String(), Err: errs.String(), Code: cmd.ProcessState.ExitCode()}
}

// refusal runs a volctl command that must fail, and returns its result.
func refusal(h *harness.Host, args ...string) harness.Result {
	h.T.Helper()
	r := h.Try(args...)
	if r.Code == 0 {
		h.T.Fatalf("volctl %s succeeds:\n%s", strings.Join(args, " "), r.Out)
	}
	return r
}

// TestHints checks that every command that a hint suggests works in the state in which the hint
// appears.
func TestHints(t *testing.T) {
	t.Parallel()
	h := harness.StartWithFstab(t)
	h.Register("data", "single-node-writer")
	dir := filepath.Join(h.Dir, "srv")
	h.Must(os.Mkdir(dir, 0o755))

	// The owner of the claim is a mount, so the hint must first unmount the volume.
	for _, args := range [][]string{{"volume", "deregister", "data", "-y"}, {"volume", "detach", "data", "--all"}, {"volume", "claim", "data", "--alloc", "b", "--timeout", "1s"}} {
		h.Volctl("mount", "data", dir)
		followHints(h.Host, refusal(h.Host, args...))
		h.Volctl("wait", "--volume", "data", "--for", "free", "--timeout", "60s")
	}

	// A drain prints the command that unmounts the volume.
	h.Volctl("mount", "data", dir)
	drained := h.Try("node", "drain", "--deadline", "1s")
	if want := "volctl umount " + dir; !strings.Contains(drained.Out+drained.Err, want) {
		t.Fatalf("no %q in\n%s%s", want, drained.Out, drained.Err)
	}
	if r := runShell(h.Host, "volctl umount "+dir); r.Code != 0 {
		t.Fatal(r.Err)
	}
	h.Volctl("node", "undrain")

	// The agent notices a new file in the plugin directory without a command.
	made := runShell(h.Host, "volctl plugin init nfs plugins.d/nfs.yaml")
	_, next, ok := strings.Cut(made.Out, "then: ")
	if r := runShell(h.Host, strings.TrimSpace(next)+" -y"); made.Code != 0 || !ok || r.Code != 0 {
		t.Errorf("%s%s%s", made.Out, made.Err, r.Err)
	}
	h.Must(os.Remove(filepath.Join(h.Dir, "plugins.d", "nfs.yaml")))

	// The agent has no log of a plugin that it does not run itself.
	h.Must(os.WriteFile(filepath.Join(h.Dir, "plugins.d", "x.yaml"), []byte("id: x\nsocket: /nosuch.sock\n"), 0o644))
	h.Volctl("wait", "--plugin", "rec", "--timeout", "60s")
	followHints(h.Host, refusal(h.Host, "wait", "--plugin", "x", "--timeout", "3s"))
	h.Must(os.Remove(filepath.Join(h.Dir, "plugins.d", "x.yaml")))

	// This socket does not belong to the host's service, so the hint must not suggest systemctl.
	if hint := hintOf(refusal(h.Host, "volume", "list", "--socket", "/nosuch.sock")); strings.Contains(hint, "systemctl") || !strings.Contains(hint, "--socket") {
		t.Errorf("hint: %s", hint)
	}
}
