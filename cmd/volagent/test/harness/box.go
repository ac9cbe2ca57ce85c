package harness

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

// The tests build these container images. PluginImage contains the recording plugin, and ShellImage
// contains a shell.
const (
	PluginImage = "localhost/volagent-test-plugin:1"
	ShellImage  = "localhost/volagent-test-shell:1"
)

// Box is a container runtime that only the tests use. It is either podman with its own storage, or
// a docker daemon in the tests' mount namespace. A box neither uses nor changes the host's own
// runtimes.
type Box struct {
	Name     string // "podman" or "docker"
	Dir      string
	Env      []string
	Plain    bool     // the box has no image of the recording plugin
	MoreArgs []string // additional arguments of dockerd
	Daemon   *exec.Cmd
}

var (
	boxes   = map[string]*Box{}
	boxesMu sync.Mutex
)

// SharedBox returns the box that all tests share for the given runtime. The first call starts it.
func SharedBox(t testing.TB, name string) *Box {
	t.Helper()
	boxesMu.Lock()
	defer boxesMu.Unlock()
	if boxes[name] == nil {
		r, err := makeBox(&Box{Name: name})
		if err != nil {
			t.Fatalf("cannot have %s run: %v", name, err)
		}
		boxes[name] = r
	}
	return boxes[name]
}

// stopBoxes stops the boxes that SharedBox has started.
func stopBoxes() (err error) {
	for _, r := range boxes {
		err = errors.Join(err, r.stop())
	}
	return errors.Join(err, hidePlugins())
}

// OwnBox starts a box that only one test uses.
func OwnBox(t testing.TB, r *Box) *Box {
	t.Helper()
	if _, err := makeBox(r); err != nil {
		t.Fatalf("cannot have %s run: %v", r.Name, err)
	}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// makeBox starts the container runtime of a box and builds the images for the tests.
func makeBox(r *Box) (_ *Box, err error) {
	if r.Dir, err = os.MkdirTemp("", "vr"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.stop())
		}
	}()
	// The root user of a container may be an unprivileged user on the host. This user must be able
	// to enter the directory.
	if err := errors.Join(os.Chmod(r.Dir, 0o711), r.writeFiles()); err != nil {
		return nil, err
	}
	if r.Name == "docker" {
		if err := r.StartDaemon(); err != nil {
			return nil, err
		}
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return nil, err
	}
	if r.Plain {
		return r, r.image(ShellImage, busybox, "busybox", shellEntrypoint)
	}
	self, err := staticSelf()
	if err != nil {
		return nil, err
	}
	return r, errors.Join(r.image(PluginImage, self, "plugin", `["/bin/plugin"]`),
		r.image(ShellImage, busybox, "busybox", shellEntrypoint))
}

// staticSelf returns the path of a statically linked build of the test binary. If the running
// binary needs shared libraries, for example because of the race detector, staticSelf builds a
// static one.
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
	static := filepath.Join(BinDir, "static.test")
	cmd := exec.Command("go", "test", "-c", "-o", static, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build: %w\n%s", err, out)
	}
	return static, nil
}

// writeFiles writes the runtime's configuration files. These files select the OCI runtime and the
// box's directories.
func (r *Box) writeFiles() error {
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
	// Docker gives all capabilities to a privileged container. On some machines even root lacks
	// CAP_SYS_RESOURCE. On such a machine this wrapper removes the capability from the container.
	const oci = `#!/bin/sh
prev=
for arg
do
  if [ "$prev" = --bundle ]
  then
    sed -i -e 's/"CAP_SYS_RESOURCE",//g' -e 's/,"CAP_SYS_RESOURCE"//g' "$arg/config.json"
  fi
  prev=$arg
done
exec runc "$@"
`
	r.Env = []string{"CONTAINERS_CONF=" + r.Dir + "/containers.conf", "CONTAINERS_STORAGE_CONF=" + r.Dir + "/storage.conf"}
	if r.Name == "docker" {
		r.Env = []string{"DOCKER_HOST=unix://" + r.Dir + "/s", "DOCKER_CONFIG=" + r.Dir}
	}
	return errors.Join(os.WriteFile(filepath.Join(r.Dir, "containers.conf"), fmt.Appendf(nil, conf, r.Dir), 0o644),
		os.WriteFile(filepath.Join(r.Dir, "storage.conf"), fmt.Appendf(nil, storage, r.Dir), 0o644),
		os.WriteFile(filepath.Join(r.Dir, "oci"), []byte(oci), 0o755))
}

// StartDaemon starts dockerd and waits until it answers.
func (r *Box) StartDaemon() error {
	log, err := os.OpenFile(filepath.Join(r.Dir, "log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{
		"--data-root", r.Dir + "/data", "--exec-root", r.Dir + "/exec", "-H", "unix://" + r.Dir + "/s", "-p", r.Dir + "/pid",
		"--iptables=false", "--ip6tables=false", "--ip-forward=false", "--bridge=none", "--log-level=warn",
	}
	if lacksResource() {
		args = append(args, "--add-runtime", "less="+r.Dir+"/oci", "--default-runtime", "less")
	}
	for end := time.Now().Add(200 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		// Start dockerd, or start it again if it has ended. On a busy host it ends if its
		// containerd does not start in time.
		if r.Daemon == nil || ProcessEnded(r.Daemon.Process.Pid) {
			if r.Daemon != nil {
				_ = r.Daemon.Wait() // dockerd has logged why it ended
				r.Daemon = nil
			}
			if err := r.forgetContainerd(); err != nil {
				return err
			}
			daemon := exec.Command("dockerd", append(args, r.MoreArgs...)...)
			daemon.Stdout, daemon.Stderr = log, log
			if err := daemon.Start(); err != nil {
				return err
			}

			r.Daemon = daemon
		}
		out, err := r.Run("version")
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("dockerd does not answer: %w: %s", err, out)
		}
	}
}

// forgetContainerd removes the pid file of a containerd that has been killed. If the process still
// exists as a zombie, dockerd would treat it as running.
func (r *Box) forgetContainerd() error {
	file := filepath.Join(r.Dir, "exec", "containerd", "containerd.pid")
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err == nil && !ProcessEnded(pid) {
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

// image builds an image that contains only one program.
func (r *Box) image(name, program, as, entrypoint string) error {
	cmd := r.Command("import", "--change", "ENTRYPOINT "+entrypoint, "-", name)
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

// WriteShellImage writes a file that "docker import" makes ShellImage of. With the returned argument, the
// image has its entry point.
func WriteShellImage(path string) (change string, err error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return "", err
	}
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	return "--change=ENTRYPOINT " + shellEntrypoint, errors.Join(writeTar(f, busybox, "bin/busybox"), f.Close())
}

// shellEntrypoint is the entry point of ShellImage.
const shellEntrypoint = `["/bin/busybox", "sh", "-c"]`

// writeTar writes a tar archive with the file tree of an image that contains only one program.
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

// Command returns an exec.Cmd for a command of the container runtime.
func (r *Box) Command(args ...string) *exec.Cmd {
	cmd := exec.Command(r.Name, args...)
	cmd.Env = append(os.Environ(), r.Env...)
	return cmd
}

// Run runs a command of the container runtime and returns its standard output. If the command
// fails, Run also returns the error output. It drops the warnings of a successful command, because
// podman prints warnings while a volume plugin is not running.
func (r *Box) Run(args ...string) (string, error) {
	var answer, said bytes.Buffer
	cmd := r.Command(args...)
	cmd.Stdout, cmd.Stderr = &answer, &said
	err := cmd.Run()
	if err != nil {
		answer.Write(said.Bytes())
	}
	return strings.TrimSpace(answer.String()), err
}

// Must runs a command of the container runtime, which must succeed, and returns its output.
func (r *Box) Must(t testing.TB, args ...string) string {
	t.Helper()
	out, err := r.Run(args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", r.Name, strings.Join(args, " "), err, out)
	}
	return out
}

// RemoveAll removes the containers that match the filter.
func (r *Box) RemoveAll(filter ...string) error {
	out, err := r.Run(append([]string{"ps", "-aq", "--no-trunc"}, filter...)...)
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	for id := range strings.FieldsSeq(out) {
		if said, err := r.Run("rm", "-f", "-v", id); err != nil && !strings.Contains(strings.ToLower(said), "no such") {
			return fmt.Errorf("%w: %s", err, said)
		}
	}
	return nil
}

// stop removes all containers, stops the daemon, and removes all mounts and files of the box.
func (r *Box) stop() error {
	var err error
	if r.Daemon != nil {
		_ = r.Daemon.Process.Signal(syscall.SIGCONT) // the daemon may be suspended
	}
	if r.Daemon != nil || r.Name == "podman" {
		err = r.RemoveAll()
	}
	return errors.Join(err, r.StopDaemon(), r.UnmountAll(), os.RemoveAll(r.Dir))
}

// UnmountAll unmounts everything below the box's directory.
func (r *Box) UnmountAll() error {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	lines := strings.Split(string(raw), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if f := strings.Fields(lines[i]); len(f) > 4 && strings.HasPrefix(f[4], r.Dir+"/") {
			err = errors.Join(err, syscall.Unmount(f[4], syscall.MNT_DETACH))
		}
	}
	return err
}

// StopDaemon stops dockerd, if it is running.
func (r *Box) StopDaemon() error {
	if r.Daemon == nil {
		return nil
	}
	err := r.Daemon.Process.Signal(syscall.SIGTERM)
	if err == nil {
		_ = r.Daemon.Wait() // Wait only waits for the end after SIGTERM
	}
	r.Daemon = nil
	return err
}

// DockerPlugins is the directory in which docker searches for the sockets of its plugins. The tests
// mount another directory over the host's directory.
const DockerPlugins = "/run/docker/plugins"

var (
	pluginsMu    sync.Mutex
	pluginsShown bool
)

// ShowPlugins mounts an empty file system for DockerPlugins, unless it has already done so.
func ShowPlugins() error {
	pluginsMu.Lock()
	defer pluginsMu.Unlock()
	if pluginsShown {
		return nil
	}
	dir := filepath.Dir(DockerPlugins)
	if err := errors.Join(os.MkdirAll(dir, 0o700), syscall.Mount("tmpfs", dir, "tmpfs", 0, "")); err != nil {
		return err
	}
	pluginsShown = true
	return os.Mkdir(DockerPlugins, 0o755)
}

// hidePlugins unmounts the file system that ShowPlugins mounted.
func hidePlugins() error {
	pluginsMu.Lock()
	defer pluginsMu.Unlock()
	if !pluginsShown {
		return nil
	}
	pluginsShown = false
	return syscall.Unmount(filepath.Dir(DockerPlugins), syscall.MNT_DETACH)
}
