package container

import (
	"context"
	"encoding/csv"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// Spec describes a container that Run creates.
type Spec struct {
	Name  string
	Image string
	// Entrypoint replaces the image's entrypoint, unless it is empty.
	Entrypoint string
	Args       []string // appended to the entrypoint
	Labels     map[string]string
	Env        []Var
	// Binds are directories of the host that are mounted at the same paths in the container.
	Binds []Bind
	// Volumes are mounts in the form SOURCE:TARGET[:OPTIONS], which both runtimes accept.
	Volumes []string
}

// Var is a variable of the container's environment. If the value is a secret, it never becomes an
// argument of a process, because every user of the host can read arguments.
type Var struct {
	Name, Value string
	Secret      bool
}

// Bind is a directory of the host that is mounted in the container. If Shared is set, mounts below
// it appear both on the host and in the container.
type Bind struct {
	Path   string
	Shared bool
}

// logSize is the maximum size of the file in which the runtime keeps the container's output.
const logSize = "8m"

// Run creates and starts a container, and returns its id. It does not pull the image: if the image
// is not on the host, the error wraps ErrNoImage. After any other error, a container that does not
// run may remain.
//
// The container has no restrictions, because a plugin makes mounts for the whole host. It is
// privileged, uses the network and the pid namespace of the host, and runs as root even if its
// image names another user.
//
// The container uses the host's pid namespace for two reasons. First, some drivers enter the host's
// namespaces through process 1, or supervise daemons that they started earlier. Second, a process
// id has the same meaning inside and outside the container. A separate pid namespace would not
// confine the container anyway, because the container is privileged and has access to /dev.
//
// The runtime neither restarts the container nor checks its health, because the agent does both.
func (r Runtime) Run(ctx context.Context, s Spec) (id string, err error) {
	args := []string{
		"run", "--detach", "--name", s.Name, "--pull", "never",
		"--privileged", "--network", "host", "--pid", "host", "--user", "0:0",
		"--restart", "no", "--no-healthcheck",
	}

	args = append(args, r.logArgs()...)
	for _, name := range slices.Sorted(maps.Keys(s.Labels)) {
		args = append(args, "--label", name+"="+s.Labels[name])
	}

	for _, b := range s.Binds {
		mount, err := b.arg()
		if err != nil {
			return "", err
		}

		args = append(args, "--mount", mount)
	}

	for _, v := range s.Volumes {
		args = append(args, "--volume", v)
	}

	envArgs, env, err := variables(s.Env)
	if err != nil {
		return "", err
	}

	if s.Entrypoint != "" {
		args = append(args, "--entrypoint", s.Entrypoint)
	}

	args = append(append(args, envArgs...), s.Image)
	out, err := r.run(ctx, command{args: append(args, s.Args...), env: env, limit: slow})
	if err != nil {
		return "", err
	}

	id = lastWords(out)
	if !isID(id) {
		return "", fmt.Errorf("%s run returned %q, which is not a container id", r.name, id)
	}

	return id, nil
}

var isID = regexp.MustCompile(`^[0-9a-f]{12,64}$`).MatchString

// logArgs returns the arguments that make the runtime keep the container's output in a file of
// limited size. The default log driver of a host may keep no output, or unlimited output.
func (r Runtime) logArgs() []string {
	if r.name == "podman" {
		return []string{"--log-driver", "k8s-file", "--log-opt", "max-size=" + logSize}
	}
	return []string{"--log-driver", "json-file", "--log-opt", "max-size=" + logSize, "--log-opt", "max-file=2"}
}

// arg returns the value of the option --mount for the bind. The value is a line of CSV, because a
// path may contain a comma. Unlike the option --volume, --mount fails if the directory does not
// exist, instead of creating it.
func (b Bind) arg() (string, error) {
	fields := []string{"type=bind", "src=" + b.Path, "dst=" + b.Path}
	if b.Shared {
		fields = append(fields, "bind-propagation=rshared")
	}

	var line strings.Builder
	w := csv.NewWriter(&line)
	if err := w.Write(fields); err != nil {
		return "", fmt.Errorf("cannot mount %q: %w", b.Path, err)
	}

	w.Flush()
	return strings.TrimSuffix(line.String(), "\n"), w.Error()
}

// plain reports whether the runtime takes a variable name literally. For example, podman reads "X*"
// as a pattern.
var plain = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`).MatchString

// variables returns the arguments and the environment with which the runtime's command passes
// variables to the container.
//
// With "--env NAME", the command takes the value from its own environment, which only root can
// read. This works only if the variable does not change the behavior of the command itself, or if
// the command already has the variable with the same value. An example of such a variable is the
// URL of a proxy, which may contain a password.
func variables(vars []Var) (args, env []string, err error) {
	for _, v := range vars {
		own, set := os.LookupEnv(v.Name)
		switch through := plain(v.Name) && !among(handed, v.Name) && !among(kept, v.Name); {
		case through:
			args, env = append(args, "--env", v.Name), append(env, v.Name+"="+v.Value)
		case !v.Secret && plain(v.Name) && among(handed, v.Name) && set && own == v.Value:
			args = append(args, "--env", v.Name)
		case v.Secret:
			return nil, nil, fmt.Errorf("cannot pass the secret %s to a container: the runtime's own command would use this variable; choose another name, or mount a file", v.Name)
		default:
			args = append(args, "--env", v.Name+"="+v.Value)
		}
	}

	return args, env, nil
}
