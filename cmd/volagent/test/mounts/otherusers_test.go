package mounts_test

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
	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// asNobody runs a program as an unprivileged user. It returns the program's output and whether the
// program succeeded.
func asNobody(h *harness.Host, args ...string) (string, bool) {
	h.T.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Env = "/", h.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err == nil
}

// mountPoints returns the mount points below the host's directory.
func mountPoints(h *harness.Host) (paths []string) {
	for line := range strings.Lines(h.Mounts()) {
		paths = append(paths, strings.Fields(line)[4])
	}
	return paths
}

// optionsAt returns the options of the mount at a path.
func optionsAt(h *harness.Host, path string) []string {
	h.T.Helper()
	for line := range strings.Lines(h.Mounts()) {
		if f := strings.Fields(line); f[4] == path {
			return strings.Split(f[5], ",")
		}
	}
	h.T.Fatalf("nothing is mounted at %s", path)
	return nil
}

// plantFiles writes a file and a set-user-ID program into a directory. Both belong to root, and all
// users may read the file and run the program.
func plantFiles(h *harness.Host, dir string) {
	h.T.Helper()
	id, err := exec.LookPath("id")
	h.Must(err)
	program, err := os.ReadFile(id)
	h.Must(err)
	h.Must(os.Chmod(dir, 0o777))
	h.Must(os.WriteFile(filepath.Join(dir, "file"), []byte("kept"), 0o644))
	h.Must(os.WriteFile(filepath.Join(dir, "id"), program, 0o755))
	h.Must(os.Chmod(filepath.Join(dir, "id"), 0o755|os.ModeSetuid))
}

// reachedMounts returns the mount points through which an unprivileged user can read the planted
// file.
func reachedMounts(h *harness.Host) (paths []string) {
	for _, path := range mountPoints(h) {
		if _, ok := asNobody(h, "cat", path+"/file"); ok {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

// TestOtherUsers checks which mounts an unprivileged user can reach. The user may reach only the
// targets of claims without an own directory. Files in a volume must not give the user additional
// rights.
func TestOtherUsers(t *testing.T) {
	h := harness.NewRecorded(t, "10s", nil)
	h.Start("rec", "local")
	plantFiles(h.Host, h.Dir)
	if out, _ := asNobody(h.Host, h.Dir+"/id", "-u"); out != "0" {
		t.Skipf("set-user-ID programs have no effect below %s: %s", h.Dir, out)
	}
	for _, plugin := range []string{"local", "rec"} {
		t.Run(plugin, func(t *testing.T) {
			create := func(id string) {
				t.Helper()
				h.Volctl("volume", "create", id, "--plugin", plugin, "--access-mode", "single-node-multi-writer")
			}
			create(plugin)
			private := filepath.Join(h.Dir, "private-"+plugin)
			at := filepath.Join(private, "data")
			h.Must(os.MkdirAll(at, 0o700))
			create(plugin + "-at")
			h.Volctl("volume", "claim", plugin+"-at", "--alloc", "a", "--at", at)
			plantFiles(h.Host, at)
			if got := reachedMounts(h.Host); len(got) > 0 {
				t.Errorf("a volume below a private directory is reached at %v", got)
			}
			if got := harness.DirMode(h.Host, plugin, "per-alloc/a"); got != 0o700 {
				t.Errorf("the directory of an alloc with private targets alone has mode %o", got)
			}

			public := h.Volctl("volume", "claim", plugin, "--alloc", "a")
			plantFiles(h.Host, public)
			if got := reachedMounts(h.Host); !slices.Equal(got, []string{public}) {
				t.Errorf("another user reaches %v, want %s alone", got, public)
			}
			if out, ok := asNobody(h.Host, public+"/id", "-u"); out == "0" || !ok {
				t.Errorf("a set-user-ID program in the volume gives user %q", out)
			}
			for _, path := range mountPoints(h.Host) {
				if opts := optionsAt(h.Host, path); !strings.Contains(path, "/staging/") && (!slices.Contains(opts, "nosuid") || !slices.Contains(opts, "nodev")) {
					t.Errorf("%s has the options %v", path, opts)
				}
			}
			h.Volctl("volume", "detach", plugin, "a")
			if got := harness.DirMode(h.Host, plugin, "per-alloc/a"); got != 0o700 {
				t.Errorf("after the last public target the directory of the alloc has mode %o", got)
			}
			h.Volctl("volume", "detach", plugin+"-at", "a")
			if _, err := os.Stat(filepath.Join(h.Dir, "d/csi", plugin, "per-alloc/a")); !os.IsNotExist(err) {
				t.Errorf("the directory of an alloc without claims: %v", err)
			}

			// A claim with the mount flags suid and dev gets a mount without the options nosuid and
			// nodev.
			path := h.Volctl("volume", "claim", plugin, "--mount-flag", "suid", "--mount-flag", "dev")
			if opts := optionsAt(h.Host, path); slices.Contains(opts, "nosuid") || slices.Contains(opts, "nodev") {
				t.Errorf("with suid and dev the target has the options %v", opts)
			}
			if out, _ := asNobody(h.Host, path+"/id", "-u"); out != "0" {
				t.Errorf("with suid a set-user-ID program gives user %q", out)
			}
			h.Volctl("volume", "detach", plugin)
		})
	}
}

// TestOptionsOfTheTarget checks that the mount options of a claim apply both to its own directory
// and to its target.
func TestOptionsOfTheTarget(t *testing.T) {
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	c := apiclient.New(h.Socket())
	defer c.Close()
	_, err := c.ClaimVolume(context.Background(), "data", "a", api.ClaimRequest{At: mkdir(h, "data"), AtFlags: []string{"noexec"}}, time.Minute)
	h.Must(err)
	for _, path := range mountPoints(h.Host) {
		if opts := optionsAt(h.Host, path); !strings.Contains(path, "/staging/") && !slices.Contains(opts, "noexec") {
			t.Errorf("%s has the options %v", path, opts)
		}
	}
}

// TestModesAreRepaired checks directories that an earlier release left with too many permissions.
// The next start of the agent must correct the modes. The claims must keep their recorded paths.
func TestModesAreRepaired(t *testing.T) {
	h := harness.NewRecorded(t, "10s", nil)
	h.Start("rec", "local")
	h.Volctl("volume", "create", "public", "--plugin", "local")
	h.Volctl("volume", "create", "own", "--plugin", "local")
	path := h.Volctl("volume", "claim", "public", "--alloc", "public")
	plantFiles(h.Host, path)
	h.Must(os.Mkdir(filepath.Join(h.Dir, "own"), 0o700))
	h.Volctl("volume", "claim", "own", "--alloc", "own", "--at", filepath.Join(h.Dir, "own"))
	h.Must(h.Signal(syscall.SIGTERM))
	before := h.Mounts()
	csi := filepath.Join(h.Dir, "d/csi/local")
	for _, dir := range []string{"staging", "per-alloc/own", "per-alloc/own/.p"} {
		h.Must(os.Chmod(filepath.Join(csi, dir), 0o711))
	}
	h.Must(os.Chmod(filepath.Join(csi, "per-alloc/public"), 0o700))
	h.Start("local")
	for dir, want := range map[string]os.FileMode{
		"": 0o711, "staging": 0o700, "per-alloc": 0o711, "per-alloc/own": 0o700, "per-alloc/own/.p": 0o700, "per-alloc/public": 0o711,
	} {
		if got := harness.DirMode(h.Host, "local", dir); got != want {
			t.Errorf("%q has mode %o, want %o", dir, got, want)
		}
	}
	if h.Mounts() != before {
		t.Errorf("a start changed mounts:\n%s\nbefore:\n%s", h.Mounts(), before)
	}
	if got := reachedMounts(h.Host); !slices.Equal(got, []string{path}) {
		t.Errorf("another user reaches %v, want %s", got, path)
	}
}
