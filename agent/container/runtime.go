// Package container runs containers with podman and docker. It runs their command-line programs,
// and uses only subcommands that both programs have.
//
// Each command has a time limit and an output limit, because a daemon may hang forever. A command
// ends when its context ends. The package stores no state between two commands: it asks the runtime
// each time.
//
//	runtime.go    runs one command, and describes its errors
//	create.go     creates and starts a container
//	container.go  pulls, inspects, stops and removes
//	logs.go       copies the output of a container
//	users.go      describes a volume, and finds its containers
//	volumes.go    finds the containers that use a volume, and lists the local volumes
package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// quick is the time limit of a command that only queries.
	quick = 10 * time.Second
	// slow is the time limit of a command that creates or ends a container. Such a command can take
	// long, because it mounts layers and the disks may be busy.
	slow = time.Minute
	// pulling is the time limit for the download of an image.
	pulling = time.Hour
	// patience is the time between SIGTERM and SIGKILL when a command must end. It gives podman
	// time to release its locks, because podman may leave them locked when it is killed.
	patience = 2 * time.Second
)

const (
	maxAnswer = 4 << 20  // the limit of a command's standard output, in bytes
	maxWords  = 64 << 10 // the limit of a command's standard error, in bytes
	maxReason = 400      // the maximum length of the output that an error quotes, in bytes
)

// Callers distinguish these errors.
var (
	// ErrNotFound is returned if the container does not exist.
	ErrNotFound = errors.New("no such container")
	// ErrNoImage is returned if the image is not on this host.
	ErrNoImage = errors.New("no such image")
)

// Runtime is podman or docker.
type Runtime struct {
	name string
	via  Via
}

// Via runs a command that the package has prepared, like the method Run of exec.Cmd. When ctx ends,
// Via sends SIGTERM to the command, and SIGKILL after the command's WaitDelay.
type Via func(ctx context.Context, cmd *exec.Cmd) error

// New returns the runtime whose program has the given name. Its commands run as children of the
// agent.
func New(name string) Runtime {
	return Runtime{name: name, via: func(_ context.Context, cmd *exec.Cmd) error { return cmd.Run() }}
}

// With returns a copy of the runtime that runs its commands through via.
func (r Runtime) With(via Via) Runtime {
	r.via = via
	return r
}

// Name returns the name of the runtime's program.
func (r Runtime) Name() string { return r.name }

// handed lists the variables that a command of the runtime gets from the agent's environment. The
// command needs them to run, or to find the daemon and the storage. The agent withholds all other
// variables. With NOTIFY_SOCKET, for example, podman would announce the container to systemd as the
// agent's main process.
var handed = []string{
	"PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "DBUS_SYSTEM_BUS_ADDRESS",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	"REGISTRY_AUTH_FILE", "STORAGE_DRIVER", "STORAGE_OPTS", "CONTAINER_HOST", "CONTAINER_SSHKEY", "CONTAINER_CONNECTION",
	"DOCKER_*", "CONTAINERS_*", "PODMAN_*", "XDG_*",
}

// kept lists further variables that would change the behavior of a command. The agent never passes
// them from its environment to a command.
var kept = []string{
	"LD_*", "LISTEN_*", "NOTIFY_*", "WATCHDOG_*", "_*",
	"GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK", "GOCOVERDIR",
}

// among reports whether a list contains a name. An entry of the list that ends in "*" matches every
// name with the prefix before the "*".
func among(list []string, name string) bool {
	return slices.ContainsFunc(list, func(item string) bool {
		prefix, open := strings.CutSuffix(item, "*")
		return item == name || open && strings.HasPrefix(name, prefix)
	})
}

// environ returns the environment of a command: the variables in handed, and those in more.
func environ(more []string) []string {
	var env []string
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); among(handed, name) {
			env = append(env, entry)
		}
	}

	// systemd sets no HOME for a system service, but both runtimes need HOME to find their
	// settings.
	if os.Getenv("HOME") == "" {
		env = append(env, "HOME=/root")
	}

	return append(env, more...)
}

// command describes one run of the runtime's program.
type command struct {
	args  []string
	env   []string // additional variables of the environment
	limit time.Duration
	// receives standard output and standard error together; if nil, run captures them separately
	out io.Writer
}

// run runs a command and returns its standard output.
func (r Runtime) run(ctx context.Context, c command) (string, error) {
	path, err := exec.LookPath(r.name)
	if err != nil {
		return "", r.missing(err)
	}

	limit, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()

	cmd := exec.CommandContext(limit, path, c.args...)
	cmd.Env, cmd.Dir = environ(c.env), "/"
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = patience
	// With its own process group, the command does not receive the SIGINT of a ^C in the agent's
	// terminal.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, words := &bounded{max: maxAnswer}, &bounded{max: maxWords}
	cmd.Stdout, cmd.Stderr = out, words
	if c.out != nil {
		cmd.Stdout, cmd.Stderr = c.out, c.out
	}

	err = r.via(limit, cmd)
	switch {
	case err == nil && out.cut:
		return "", fmt.Errorf("the output of %s %s exceeds %d bytes", r.name, c.args[0], maxAnswer)
	case err == nil:
		return out.String(), nil
	case ctx.Err() != nil:
		return "", ctx.Err()
	case limit.Err() != nil:
		return "", fmt.Errorf("%s %s did not end within %s: %s", r.name, c.args[0], c.limit, r.hung())
	}

	return out.String(), r.failed(c.args[0], words.String(), err)
}

// missing returns the error for a runtime whose program cannot be executed.
func (r Runtime) missing(err error) error {
	if !errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("cannot run %q: %w", r.name, err)
	}

	pkg := r.name
	if r.name == "docker" {
		pkg = "docker.io"
	}

	return fmt.Errorf("cannot run %q: it is not in the agent's PATH (%s): install it (apt-get install %s), or set the PATH of the agent's unit",
		r.name, os.Getenv("PATH"), pkg)
}

// hung returns a hint for the case that a command of the runtime does not end.
func (r Runtime) hung() string {
	if r.name == "docker" {
		return "its daemon hangs or is busy; see systemctl status docker"
	}
	return "the host is busy, or another podman holds its locks; see ps -C podman"
}

// failed returns the error for a command that failed. For a container or an image that does not
// exist, the error wraps ErrNotFound or ErrNoImage.
func (r Runtime) failed(verb, words string, err error) error {
	reason := lastWords(words)
	low := strings.ToLower(reason)
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(low, w) })
	}
	switch {
	case has("cannot connect to the docker daemon", "error during connect", "failed to connect to the docker api"):
		return fmt.Errorf("the daemon of %s cannot be reached (systemctl start docker): %s", r.name, reason)
	case has("no such container", "no container with name or id"):
		return fmt.Errorf("%w: %s", ErrNotFound, reason)
	case has("no such image", "image not known"):
		return fmt.Errorf("%w: %s", ErrNoImage, reason)
	case reason == "":
		return fmt.Errorf("%s %s failed: %w", r.name, verb, err)
	default:
		return fmt.Errorf("%s %s failed: %s", r.name, verb, reason)
	}
}

// lastWords returns the last meaningful line of a command's output. It removes the usual prefixes,
// such as "Error: ".
func lastWords(words string) string {
	last := ""
	for line := range strings.Lines(words) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "Run '") && !strings.HasPrefix(line, "See '") {
			last = line
		}
	}

	for _, prefix := range []string{"docker: ", "Error: ", "Error response from daemon: "} {
		last = strings.TrimPrefix(last, prefix)
	}

	if len(last) > maxReason {
		last = strings.ToValidUTF8(last[:maxReason], "") + "…"
	}

	return last
}

// bounded is a writer that keeps the first max bytes, and records whether it dropped any bytes
// after them.
type bounded struct {
	buf bytes.Buffer // the buffer is not embedded, because its method ReadFrom has no limit
	max int
	cut bool
}

// String returns the bytes that were kept.
func (b *bounded) String() string { return b.buf.String() }

// Write implements io.Writer. It never fails, so that the command can finish.
func (b *bounded) Write(p []byte) (int, error) {
	keep := min(len(p), b.max-b.buf.Len())
	b.cut = b.cut || keep < len(p)
	b.buf.Write(p[:keep])
	return len(p), nil
}
