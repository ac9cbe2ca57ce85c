package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Container is the state of a container, as its runtime reports it.
type Container struct {
	ID     string
	Labels map[string]string
	// Alive is true if the container has, or may have, a running process.
	Alive bool
	// PID is the process id of the main process in the host's pid namespace. It is 0 if the
	// container has no process.
	PID int

	paused   bool
	oom      bool
	code     int
	problem  string // why the container could not be started
	finished bool
}

// inspected contains the fields that the package reads from the output of the subcommand inspect.
type inspected struct {
	ID    string `json:"Id"`
	State struct {
		Status    string
		Paused    bool
		OOMKilled bool
		Pid       int
		ExitCode  int
		Error     string
	}
	Config struct{ Labels map[string]string }
}

// dead lists the states in which a container has no process.
var dead = []string{"created", "configured", "initialized", "exited", "stopped", "dead", "removing"}

// Inspect returns the container with the given name or id. If there is no such container, the error
// wraps ErrNotFound.
func (r Runtime) Inspect(ctx context.Context, ref string) (Container, error) {
	out, err := r.run(ctx, command{args: []string{"container", "inspect", ref}, limit: quick})
	if err != nil {
		return Container{}, err
	}

	var all []inspected
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) != 1 {
		return Container{}, fmt.Errorf("cannot read the answer of %s about container %s: %w", r.name, ref, errors.Join(err, errOther))
	}

	c := all[0]
	return Container{
		ID: c.ID, Labels: c.Config.Labels, Alive: !slices.Contains(dead, c.State.Status), PID: c.State.Pid,
		paused: c.State.Paused || c.State.Status == "paused", oom: c.State.OOMKilled, code: c.State.ExitCode, problem: c.State.Error,
		finished: c.State.Status == "exited" || c.State.Status == "stopped" || c.State.Status == "dead",
	}, nil
}

var errOther = errors.New("the answer does not describe exactly one container")

// Exit describes how the container ended.
func (c Container) Exit() string {
	words := "exited with status " + strconv.Itoa(c.code)
	switch name := unix.SignalName(unix.Signal(c.code - 128)); {
	case c.oom:
		words = "killed because it ran out of memory (OOM)"
	case !c.finished:
		words = "did not run"
	case c.code > 128 && name != "":
		words = fmt.Sprintf("killed by signal %d (%s)", c.code-128, name)
	}

	if c.problem != "" {
		words += ": " + lastWords(c.problem)
	}

	return words
}

// PullCommand returns the command line with which an operator can pull an image.
func (r Runtime) PullCommand(image string) string { return r.name + " pull " + image }

// Pull downloads an image, which may take minutes.
func (r Runtime) Pull(ctx context.Context, image string) error {
	_, err := r.run(ctx, command{args: []string{"pull", "--quiet", image}, limit: pulling})
	if err != nil {
		return fmt.Errorf("cannot pull image %q: %w", image, err)
	}
	return nil
}

// Stop ends a container. The runtime sends the stop signal that the container's image names, and
// SIGKILL after the grace time.
func (r Runtime) Stop(ctx context.Context, id string, grace time.Duration) error {
	seconds := strconv.Itoa(int((grace + time.Second - 1) / time.Second))
	_, err := r.run(ctx, command{args: []string{"stop", "-t", seconds, id}, limit: grace + quick})
	return err
}

// Kill ends a container at once, even if the container is paused. It fails if the runtime does not
// answer.
func (r Runtime) Kill(ctx context.Context, id string) error {
	_, err := r.run(ctx, command{args: []string{"kill", id}, limit: quick})
	if err != nil && strings.Contains(err.Error(), "paused") {
		if _, err = r.run(ctx, command{args: []string{"unpause", id}, limit: quick}); err == nil {
			_, err = r.run(ctx, command{args: []string{"kill", id}, limit: quick})
		}
	}

	return err
}

// Remove removes a container that has ended, together with its anonymous volumes. It does not
// remove a running container.
func (r Runtime) Remove(ctx context.Context, id string) error {
	_, err := r.run(ctx, command{args: []string{"rm", "--volumes", id}, limit: slow})
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}
