package main_test

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The tests build these images. One contains the recording plugin, and the other a shell.
const (
	pluginImage = "localhost/volagent-test-plugin:1"
	shellImage  = "localhost/volagent-test-shell:1"
)

// box is a container runtime that belongs to the tests: podman with its own storage, or a docker
// daemon in the tests' mount namespace. It neither uses nor changes the host's own runtimes.
type box struct {
	name   string // "podman" or "docker"
	dir    string
	env    []string
	plain  bool     // the box runs no plugin
	more   []string // additional arguments of the daemon
	daemon *exec.Cmd
}

var (
	boxes   = map[string]*box{}
	boxesMu sync.Mutex
)

// newBox returns the box of a runtime, which all tests share.
func newBox(t testing.TB, name string) *box {
	t.Helper()
	boxesMu.Lock()
	defer boxesMu.Unlock()
	if boxes[name] == nil {
		r, err := makeBox(&box{name: name})
		if err != nil {
			t.Fatalf("cannot have %s run: %v", name, err)
		}
		boxes[name] = r
	}
	return boxes[name]
}

// stopBoxes stops the boxes that newBox made.
func stopBoxes() (err error) {
	for _, r := range boxes {
		err = errors.Join(err, r.stop())
	}
	return errors.Join(err, hidePlugins())
}

// ownBox makes a box for one test.
func ownBox(t testing.TB, r *box) *box {
	t.Helper()
	if _, err := makeBox(r); err != nil {
		t.Fatalf("cannot have %s run: %v", r.name, err)
	}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// makeBox starts a runtime and creates the images of the tests.
func makeBox(r *box) (_ *box, err error) {
	if r.dir, err = os.MkdirTemp("", "vr"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.stop())
		}
	}()
	// The root user of a container may be another user on the host. That user must be able to enter
	// the directory.
	if err := errors.Join(os.Chmod(r.dir, 0o711), r.writeFiles()); err != nil {
		return nil, err
	}
	if r.name == "docker" {
		if err := r.startDaemon(); err != nil {
			return nil, err
		}
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return nil, err
	}
	if r.plain {
		return r, r.image(shellImage, busybox, "busybox", `["/bin/busybox", "sh", "-c"]`)
	}
	self, err := staticSelf()
	if err != nil {
		return nil, err
	}
	return r, errors.Join(r.image(pluginImage, self, "plugin", `["/bin/plugin"]`),
		r.image(shellImage, busybox, "busybox", `["/bin/busybox", "sh", "-c"]`))
}

// staticSelf returns the path of a test binary that needs no shared library. If this binary was
// built with cgo, as for the race detector, staticSelf builds another one.
func staticSelf() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	f, err := elf.Open(self)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return self, nil
	}
	static := filepath.Join(binDir, "static.test")
	cmd := exec.Command("go", "test", "-c", "-o", static, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build: %w\n%s", err, out)
	}
	return static, nil
}

// writeFiles writes the runtime's configuration files, which select the OCI runtime and the
// directories.
func (r *box) writeFiles() error {
	const conf = `[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
tmp_dir = "%[1]s/tmp"
`
	const storage = `[storage]
driver = "overlay"
runroot = "%[1]s/run"
graphroot = "%[1]s/data"
`
	// Docker gives all existing capabilities to a privileged container. On a machine where even
	// root lacks CAP_SYS_RESOURCE, the container must start without it.
	const oci = `#!/bin/sh
prev=
for arg; do
  if [ "$prev" = --bundle ]; then
    sed -i 's/"CAP_SYS_RESOURCE",//g; s/,"CAP_SYS_RESOURCE"//g' "$arg/config.json"
  fi
  prev=$arg
done
exec runc "$@"
`
	r.env = []string{"CONTAINERS_CONF=" + r.dir + "/containers.conf", "CONTAINERS_STORAGE_CONF=" + r.dir + "/storage.conf"}
	if r.name == "docker" {
		r.env = []string{"DOCKER_HOST=unix://" + r.dir + "/s", "DOCKER_CONFIG=" + r.dir}
	}
	return errors.Join(os.WriteFile(filepath.Join(r.dir, "containers.conf"), fmt.Appendf(nil, conf, r.dir), 0o644),
		os.WriteFile(filepath.Join(r.dir, "storage.conf"), fmt.Appendf(nil, storage, r.dir), 0o644),
		os.WriteFile(filepath.Join(r.dir, "oci"), []byte(oci), 0o755))
}

// startDaemon starts dockerd and waits until it answers.
func (r *box) startDaemon() error {
	log, err := os.OpenFile(filepath.Join(r.dir, "log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{
		"--data-root", r.dir + "/data", "--exec-root", r.dir + "/exec", "-H", "unix://" + r.dir + "/s", "-p", r.dir + "/pid",
		"--iptables=false", "--ip6tables=false", "--ip-forward=false", "--bridge=none", "--log-level=warn",
	}
	if lacksResource() {
		args = append(args, "--add-runtime", "less="+r.dir+"/oci", "--default-runtime", "less")
	}
	for end := time.Now().Add(200 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		// On a busy host, dockerd may end because its containerd did not start in time.
		if r.daemon == nil || ended(r.daemon.Process.Pid) {
			if r.daemon != nil {
				_ = r.daemon.Wait() // the daemon's log shows the reason
			}
			if err := r.forgetContainerd(); err != nil {
				return err
			}
			r.daemon = exec.Command("dockerd", append(args, r.more...)...)
			r.daemon.Stdout, r.daemon.Stderr = log, log
			if err := r.daemon.Start(); err != nil {
				return err
			}
		}
		out, err := r.run("version")
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("dockerd does not answer: %w: %s", err, out)
		}
	}
}

// forgetContainerd removes the pid file of a containerd that was killed and is still a zombie.
// Otherwise dockerd would regard the zombie as a running process.
func (r *box) forgetContainerd() error {
	file := filepath.Join(r.dir, "exec", "containerd", "containerd.pid")
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err == nil && !ended(pid) {
		return nil
	}
	return os.Remove(file)
}

// lacksResource reports whether root lacks CAP_SYS_RESOURCE on this machine.
func lacksResource() bool {
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(raw), "CapBnd:")
	line, _, _ := strings.Cut(rest, "\n")
	set, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	return err == nil && set&(1<<24) == 0
}

// image creates an image that contains one program.
func (r *box) image(name, program, as, entrypoint string) error {
	cmd := r.command("import", "--change", "ENTRYPOINT "+entrypoint, "-", name)
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return err
	}
	err = errors.Join(writeTar(in, program, "bin/"+as), in.Close(), cmd.Wait())
	if err != nil {
		return fmt.Errorf("cannot make image %s: %w: %s", name, err, out.String())
	}
	return nil
}

// writeTar writes the file tree of an image with one program as a tar archive.
func writeTar(to io.Writer, program, as string) error {
	f, err := os.Open(program)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	w := tar.NewWriter(to)
	for _, dir := range []string{"bin", "tmp", "dev", "proc", "sys", "etc"} {
		if err := w.WriteHeader(&tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: 0o755}); err != nil {
			return err
		}
	}
	if err := w.WriteHeader(&tar.Header{Name: as, Typeflag: tar.TypeReg, Mode: 0o755, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return errors.Join(err, w.Close())
}

// command prepares a command of the runtime.
func (r *box) command(args ...string) *exec.Cmd {
	cmd := exec.Command(r.name, args...)
	cmd.Env = append(os.Environ(), r.env...)
	return cmd
}

// run runs a command of the runtime and returns its standard output. If the command fails, run
// appends the error output. It omits warnings of a successful command, because podman prints some
// while a volume plugin does not run.
func (r *box) run(args ...string) (string, error) {
	var answer, said bytes.Buffer
	cmd := r.command(args...)
	cmd.Stdout, cmd.Stderr = &answer, &said
	err := cmd.Run()
	if err != nil {
		answer.Write(said.Bytes())
	}
	return strings.TrimSpace(answer.String()), err
}

// must runs a command of the runtime and returns its output. The command must succeed.
func (r *box) must(t testing.TB, args ...string) string {
	t.Helper()
	out, err := r.run(args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", r.name, strings.Join(args, " "), err, out)
	}
	return out
}

// removeAll removes the containers that a filter selects.
func (r *box) removeAll(filter ...string) error {
	out, err := r.run(append([]string{"ps", "-aq", "--no-trunc"}, filter...)...)
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	for id := range strings.FieldsSeq(out) {
		if said, err := r.run("rm", "-f", "-v", id); err != nil && !strings.Contains(strings.ToLower(said), "no such") {
			return fmt.Errorf("%w: %s", err, said)
		}
	}
	return nil
}

// stop removes all containers, stops the daemon, and removes all mounts and files of the box.
func (r *box) stop() error {
	var err error
	if r.daemon != nil {
		_ = r.daemon.Process.Signal(syscall.SIGCONT) // a failed test may have left the daemon stopped
	}
	if r.daemon != nil || r.name == "podman" {
		err = r.removeAll()
	}
	return errors.Join(err, r.stopDaemon(), r.unmountAll(), os.RemoveAll(r.dir))
}

// unmountAll unmounts all mounts below the box's directory.
func (r *box) unmountAll() error {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	lines := strings.Split(string(raw), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if f := strings.Fields(lines[i]); len(f) > 4 && strings.HasPrefix(f[4], r.dir+"/") {
			err = errors.Join(err, syscall.Unmount(f[4], syscall.MNT_DETACH))
		}
	}
	return err
}

// stopDaemon stops dockerd, if it is running.
func (r *box) stopDaemon() error {
	if r.daemon == nil {
		return nil
	}
	err := r.daemon.Process.Signal(syscall.SIGTERM)
	if err == nil {
		_ = r.daemon.Wait() // the daemon received SIGTERM
	}
	r.daemon = nil
	return err
}
