package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// hint returns the hint in the error output of volctl.
func (r result) hint() string {
	for line := range strings.Lines(r.err) {
		if hint, is := strings.CutPrefix(line, "hint: "); is {
			return strings.TrimSpace(hint)
		}
	}
	return ""
}

// follow runs the hint of a refused command in a shell, as a user would. If the hint's command is
// refused with another hint, follow runs that hint next, until a command succeeds.
func (h *host) follow(r result) {
	h.t.Helper()
	seen := map[string]bool{}
	for r.code != 0 {
		hint := r.hint()
		if hint == "" || seen[hint] {
			h.t.Fatalf("no way on from exit %d:\n%s", r.code, r.err)
		}
		seen[hint] = true
		r = h.shell(hint)
	}
}

// shell runs a command line in a shell and returns its result.
func (h *host) shell(line string) result {
	h.t.Helper()
	cmd := exec.Command("sh", "-c", line)
	cmd.Env, cmd.Dir = h.env, h.dir
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run() // the exit code tells whether the command failed
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// mustRefuse runs volctl and returns its result. The command must fail.
func (h *host) mustRefuse(args ...string) result {
	h.t.Helper()
	r := h.try(args...)
	if r.code == 0 {
		h.t.Fatalf("volctl %s succeeds:\n%s", strings.Join(args, " "), r.out)
	}
	return r
}

// TestHints checks that every command that a hint suggests works in the state in which the hint
// appears.
func TestHints(t *testing.T) {
	t.Parallel()
	h := newPatient(t)
	h.register("data", "single-node-writer")
	dir := filepath.Join(h.dir, "srv")
	h.must(os.Mkdir(dir, 0o755))

	// A mount owns the claim, so the hint must unmount the volume first.
	for _, args := range [][]string{{"volume", "deregister", "data", "-y"}, {"volume", "detach", "data", "--all"}, {"volume", "claim", "data", "--alloc", "b", "--timeout", "1s"}} {
		h.volctl("mount", "data", dir)
		h.follow(h.mustRefuse(args...))
		h.volctl("wait", "--volume", "data", "--for", "free", "--timeout", "60s")
	}

	// A drain prints the command that unmounts the volume.
	h.volctl("mount", "data", dir)
	drained := h.try("node", "drain", "--deadline", "1s")
	if want := "volctl umount " + dir; !strings.Contains(drained.out+drained.err, want) {
		t.Fatalf("no %q in\n%s%s", want, drained.out, drained.err)
	}
	if r := h.shell("volctl umount " + dir); r.code != 0 {
		t.Fatal(r.err)
	}
	h.volctl("node", "undrain")

	// The agent notices a new file in the plugin directory without a command.
	made := h.shell("volctl plugin init nfs plugins.d/nfs.yaml")
	_, next, ok := strings.Cut(made.out, "then: ")
	if r := h.shell(next); made.code != 0 || !ok || r.code != 0 {
		t.Errorf("%s%s%s", made.out, made.err, r.err)
	}
	h.must(os.Remove(filepath.Join(h.dir, "plugins.d", "nfs.yaml")))

	// A plugin that the agent does not run has no log.
	h.must(os.WriteFile(filepath.Join(h.dir, "plugins.d", "x.yaml"), []byte("id: x\nsocket: /nosuch.sock\n"), 0o644))
	h.volctl("wait", "--plugin", "rec", "--timeout", "60s")
	h.follow(h.mustRefuse("wait", "--plugin", "x", "--timeout", "3s"))
	h.must(os.Remove(filepath.Join(h.dir, "plugins.d", "x.yaml")))

	// This socket does not belong to the host's service, so the hint must not suggest systemctl.
	if hint := h.mustRefuse("volume", "list", "--socket", "/nosuch.sock").hint(); strings.Contains(hint, "systemctl") || !strings.Contains(hint, "--socket") {
		t.Errorf("hint: %s", hint)
	}
}
