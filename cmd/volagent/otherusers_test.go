package main_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
)

// asNobody runs a program as a user without rights. It returns the program's output and reports
// whether the program succeeded.
func (h *host) asNobody(args ...string) (string, bool) {
	h.t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Env = "/", h.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err == nil
}

// mountPoints returns the mount points below the host's directory.
func (h *host) mountPoints() (paths []string) {
	for line := range strings.Lines(h.mounts()) {
		paths = append(paths, strings.Fields(line)[4])
	}
	return paths
}

// optionsAt returns the options of the mount at a path.
func (h *host) optionsAt(path string) []string {
	h.t.Helper()
	for line := range strings.Lines(h.mounts()) {
		if f := strings.Fields(line); f[4] == path {
			return strings.Split(f[5], ",")
		}
	}
	h.t.Fatalf("nothing is mounted at %s", path)
	return nil
}

// plant writes a file and a set-user-ID program into a directory. Both belong to root, and all
// users may read the file and run the program.
func (h *host) plant(dir string) {
	h.t.Helper()
	id, err := exec.LookPath("id")
	h.must(err)
	program, err := os.ReadFile(id)
	h.must(err)
	h.must(os.Chmod(dir, 0o777))
	h.must(os.WriteFile(filepath.Join(dir, "file"), []byte("kept"), 0o644))
	h.must(os.WriteFile(filepath.Join(dir, "id"), program, 0o755))
	h.must(os.Chmod(filepath.Join(dir, "id"), 0o755|os.ModeSetuid))
}

// reached returns the mount points through which another user can read the planted file.
func (h *host) reached() (paths []string) {
	for _, path := range h.mountPoints() {
		if _, ok := h.asNobody("cat", path+"/file"); ok {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

// mode returns the permissions of a directory below d/csi. The arguments are the elements of the
// path.
func (h *host) mode(parts ...string) os.FileMode {
	h.t.Helper()
	info, err := os.Stat(filepath.Join(append([]string{h.dir, "d/csi"}, parts...)...))
	h.must(err)
	return info.Mode().Perm()
}

// TestOtherUsers checks which mounts a user without rights can reach. The user may reach only the
// targets of claims without an own directory. Files in a volume must not give the user additional
// rights.
func TestOtherUsers(t *testing.T) {
	h := prepared(t, "10s", nil)
	h.start("rec", "local")
	h.plant(h.dir)
	if out, _ := h.asNobody(h.dir+"/id", "-u"); out != "0" {
		t.Skipf("set-user-ID programs have no effect below %s: %s", h.dir, out)
	}
	for _, plugin := range []string{"local", "rec"} {
		t.Run(plugin, func(t *testing.T) {
			create := func(id string) {
				t.Helper()
				h.volctl("volume", "create", id, "--plugin", plugin, "--access-mode", "single-node-multi-writer")
			}
			create(plugin)
			private := filepath.Join(h.dir, "private-"+plugin)
			at := filepath.Join(private, "data")
			h.must(os.MkdirAll(at, 0o700))
			create(plugin + "-at")
			h.volctl("volume", "claim", plugin+"-at", "--alloc", "a", "--at", at)
			h.plant(at)
			if got := h.reached(); len(got) > 0 {
				t.Errorf("a volume below a private directory is reached at %v", got)
			}
			if got := h.mode(plugin, "per-alloc/a"); got != 0o700 {
				t.Errorf("the directory of an alloc with private targets alone has mode %o", got)
			}

			public := h.volctl("volume", "claim", plugin, "--alloc", "a")
			h.plant(public)
			if got := h.reached(); !slices.Equal(got, []string{public}) {
				t.Errorf("another user reaches %v, want %s alone", got, public)
			}
			if out, ok := h.asNobody(public+"/id", "-u"); out == "0" || !ok {
				t.Errorf("a set-user-ID program in the volume gives user %q", out)
			}
			for _, path := range h.mountPoints() {
				if opts := h.optionsAt(path); !strings.Contains(path, "/staging/") && (!slices.Contains(opts, "nosuid") || !slices.Contains(opts, "nodev")) {
					t.Errorf("%s has the options %v", path, opts)
				}
			}
			h.volctl("volume", "detach", plugin, "a")
			if got := h.mode(plugin, "per-alloc/a"); got != 0o700 {
				t.Errorf("after the last public target the directory of the alloc has mode %o", got)
			}
			h.volctl("volume", "detach", plugin+"-at", "a")
			if _, err := os.Stat(filepath.Join(h.dir, "d/csi", plugin, "per-alloc/a")); !os.IsNotExist(err) {
				t.Errorf("the directory of an alloc without claims: %v", err)
			}

			// A claim with the flags suid and dev gets a mount without nosuid and nodev.
			path := h.volctl("volume", "claim", plugin, "--mount-flag", "suid", "--mount-flag", "dev")
			if opts := h.optionsAt(path); slices.Contains(opts, "nosuid") || slices.Contains(opts, "nodev") {
				t.Errorf("with suid and dev the target has the options %v", opts)
			}
			if out, _ := h.asNobody(path+"/id", "-u"); out != "0" {
				t.Errorf("with suid a set-user-ID program gives user %q", out)
			}
			h.volctl("volume", "detach", plugin)
		})
	}
}

// TestOptionsOfTheTarget checks that the mount options for a claim's own directory also apply to
// the claim's target.
func TestOptionsOfTheTarget(t *testing.T) {
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	c := apiclient.New(h.socket())
	defer c.Close()
	_, err := c.ClaimVolume(context.Background(), "data", "a", api.ClaimRequest{At: h.at("data"), AtFlags: []string{"noexec"}}, time.Minute)
	h.must(err)
	for _, path := range h.mountPoints() {
		if opts := h.optionsAt(path); !strings.Contains(path, "/staging/") && !slices.Contains(opts, "noexec") {
			t.Errorf("%s has the options %v", path, opts)
		}
	}
}

// TestModesAreRepaired checks that the next start corrects modes of directories that an earlier
// release left too open. The claims keep their recorded paths.
func TestModesAreRepaired(t *testing.T) {
	h := prepared(t, "10s", nil)
	h.start("rec", "local")
	h.volctl("volume", "create", "public", "--plugin", "local")
	h.volctl("volume", "create", "own", "--plugin", "local")
	path := h.volctl("volume", "claim", "public", "--alloc", "public")
	h.plant(path)
	h.must(os.Mkdir(filepath.Join(h.dir, "own"), 0o700))
	h.volctl("volume", "claim", "own", "--alloc", "own", "--at", filepath.Join(h.dir, "own"))
	h.must(h.signal(syscall.SIGTERM))
	before := h.mounts()
	csi := filepath.Join(h.dir, "d/csi/local")
	for _, dir := range []string{"staging", "per-alloc/own", "per-alloc/own/.p"} {
		h.must(os.Chmod(filepath.Join(csi, dir), 0o711))
	}
	h.must(os.Chmod(filepath.Join(csi, "per-alloc/public"), 0o700))
	h.start("local")
	for dir, want := range map[string]os.FileMode{
		"": 0o711, "staging": 0o700, "per-alloc": 0o711, "per-alloc/own": 0o700, "per-alloc/own/.p": 0o700, "per-alloc/public": 0o711,
	} {
		if got := h.mode("local", dir); got != want {
			t.Errorf("%q has mode %o, want %o", dir, got, want)
		}
	}
	if h.mounts() != before {
		t.Errorf("a start changed mounts:\n%s\nbefore:\n%s", h.mounts(), before)
	}
	if got := h.reached(); !slices.Equal(got, []string{path}) {
		t.Errorf("another user reaches %v, want %s", got, path)
	}
}
