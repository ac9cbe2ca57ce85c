// Package container has podman and docker run containers, by their own commands
// and by the few of them that both have in common.
//
// A command is bounded in time and in what is kept of its words, because a
// daemon may hang for ever; it ends with its context. Nothing is remembered
// between two commands: what there is, the runtime says.
//
//	runtime.go    one command, and its errors in words
//	create.go     what is asked of a container
//	container.go  its life, from pull to rm
//	logs.go       what it wrote
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
	// quick bounds a command that only asks.
	quick = 10 * time.Second
	// slow bounds one that makes or ends something: layers are mounted, and
	// disks may be busy.
	slow = time.Minute
	// pulling bounds the download of an image.
	pulling = time.Hour
	// patience is how long a command that is told to end may take for it, before
	// it is killed. A podman that is killed may leave locks.
	patience = 2 * time.Second
)

const (
	maxAnswer = 4 << 20 // bytes of a command's output that are kept
	maxWords  = 64 << 10
	maxReason = 400 // bytes of its words that an error repeats
)

// What a command may have failed for.
var (
	// ErrNotFound: there is no such container.
	ErrNotFound = errors.New("no such container")
	// ErrNoImage: the image is not on this host.
	ErrNoImage = errors.New("no such image")
)

// Runtime is podman or docker.
type Runtime struct {
	name string
	via  Via
}

// Via runs a command that is ready to be, as its Run would, and ends it with ctx:
// by SIGTERM, and after its WaitDelay by SIGKILL.
type Via func(ctx context.Context, cmd *exec.Cmd) error

// New returns the runtime whose command has that name, and runs as a child.
func New(name string) Runtime {
	return Runtime{name: name, via: func(_ context.Context, cmd *exec.Cmd) error { return cmd.Run() }}
}

// With returns the runtime with its commands run in another way.
func (r Runtime) With(via Via) Runtime {
	r.via = via
	return r
}

// Name is that of its command.
func (r Runtime) Name() string { return r.name }

// handed are the variables of the agent's environment that the command gets:
// what it needs to run, and what says which daemon and which storage is meant.
// The rest stays: podman, for one, would announce the container to the service
// manager as the agent's main process if it had NOTIFY_SOCKET.
var handed = []string{
	"PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "DBUS_SYSTEM_BUS_ADDRESS",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	"REGISTRY_AUTH_FILE", "STORAGE_DRIVER", "STORAGE_OPTS", "CONTAINER_HOST", "CONTAINER_SSHKEY", "CONTAINER_CONNECTION",
	"DOCKER_*", "CONTAINERS_*", "PODMAN_*", "XDG_*",
}

// kept are further ones that the command would obey, and does not get.
var kept = []string{
	"LD_*", "LISTEN_*", "NOTIFY_*", "WATCHDOG_*", "_*",
	"GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK", "GOCOVERDIR",
}

// among reports whether a name is on a list; "*" stands for any end.
func among(list []string, name string) bool {
	return slices.ContainsFunc(list, func(item string) bool {
		prefix, open := strings.CutSuffix(item, "*")
		return item == name || open && strings.HasPrefix(name, prefix)
	})
}

// environ is the environment of a command.
func environ(more []string) []string {
	var env []string
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); among(handed, name) {
			env = append(env, entry)
		}
	}
	// A service has no HOME unless it is given one, and both want to know where
	// their settings would be.
	if os.Getenv("HOME") == "" {
		env = append(env, "HOME=/root")
	}
	return append(env, more...)
}

// command is one run of the runtime's command.
type command struct {
	args  []string
	env   []string // beside what every one gets
	limit time.Duration
	out   io.Writer // gets all that it says; nil keeps it apart
}

// run runs a command and returns what it printed.
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
	// A group of its own, so that a ^C in the agent's terminal does not end it
	// half-way.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, words := &bounded{max: maxAnswer}, &bounded{max: maxWords}
	cmd.Stdout, cmd.Stderr = out, words
	if c.out != nil {
		cmd.Stdout, cmd.Stderr = c.out, c.out
	}
	err = r.via(limit, cmd)
	switch {
	case err == nil && out.cut:
		return "", fmt.Errorf("%s %s says more than %d bytes", r.name, c.args[0], maxAnswer)
	case err == nil:
		return out.String(), nil
	case ctx.Err() != nil:
		return "", ctx.Err()
	case limit.Err() != nil:
		return "", fmt.Errorf("%s %s has not ended within %s: %s", r.name, c.args[0], c.limit, r.hung())
	}
	return out.String(), r.failed(c.args[0], words.String(), err)
}

// missing says that there is no such command.
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

// hung says what to do about a command that does not end.
func (r Runtime) hung() string {
	if r.name == "docker" {
		return "its daemon hangs, or is busy; see systemctl status docker"
	}
	return "the host is busy, or another podman holds its locks; see ps -C podman"
}

// failed puts a command's failure into words.
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

// lastWords are the last line of what a command had to say that says something.
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

// bounded keeps the first of what is written, and tells whether more came.
type bounded struct {
	buf bytes.Buffer // no embedding: its ReadFrom knows no bound
	max int
	cut bool
}

// String is what was kept.
func (b *bounded) String() string { return b.buf.String() }

// Write implements io.Writer. It never fails: the command is to run to its end.
func (b *bounded) Write(p []byte) (int, error) {
	keep := min(len(p), b.max-b.buf.Len())
	b.cut = b.cut || keep < len(p)
	b.buf.Write(p[:keep])
	return len(p), nil
}
