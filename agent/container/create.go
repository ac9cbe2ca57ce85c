package container

import (
	"context"
	"encoding/csv"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// Spec describes the container to make.
type Spec struct {
	Name   string
	Image  string
	Args   []string // appended to the image's entrypoint
	Labels map[string]string
	Env    []Var
	// Binds are directories of the host that are mounted at the same path in the container.
	Binds []Bind
	// Volumes are SOURCE:TARGET[:OPTIONS], a form that both runtimes know.
	Volumes []string
}

// Var is a variable of the container's environment. The value of a secret is never an argument of a
// process, where every user could read it.
type Var struct {
	Name, Value string
	Secret      bool
}

// Bind is a directory of the host. With Shared, a mount below it on either side appears on both
// sides.
type Bind struct {
	Path   string
	Shared bool
}

// logSize is the size above which the runtime drops output of the container.
const logSize = "8m"

// Run makes a container, starts it, and returns its id. The image must be on the host, otherwise
// the error wraps ErrNoImage. After any other error there may be a container that does not run.
//
// A plugin mounts for the whole host, so its container has no restrictions. It is privileged, uses
// the network and the pid namespace of the host, and runs as root even if its image names another
// user.
//
// It needs the host's processes for two reasons. Some drivers enter the host's namespaces through
// process 1, or look after daemons that they started earlier. Also, a process id then means the
// same inside and outside. A pid namespace would be no barrier to a privileged container that has
// /dev.
//
// Only the agent restarts the container and checks its health.
func (r Runtime) Run(ctx context.Context, s Spec) (id string, err error) {
	args := []string{
		"run", "--detach", "--name", s.Name, "--pull", "never",
		"--privileged", "--network", "host", "--pid", "host", "--user", "0:0",
		"--restart", "no", "--no-healthcheck",
	}

	args = append(args, r.logArgs()...)
	for _, name := range sorted(s.Labels) {
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

	args = append(append(args, envArgs...), s.Image)
	out, err := r.run(ctx, command{args: append(args, s.Args...), env: env, limit: slow})
	if err != nil {
		return "", err
	}

	id = lastWords(out)
	if !isID(id) {
		return "", fmt.Errorf("%s run says %q, which is no container's id", r.name, id)
	}

	return id, nil
}

var isID = regexp.MustCompile(`^[0-9a-f]{12,64}$`).MatchString

// logArgs make the runtime keep the container's output in a file of limited size. The default
// drivers of a system may keep no output, or keep it without a limit.
func (r Runtime) logArgs() []string {
	if r.name == "podman" {
		return []string{"--log-driver", "k8s-file", "--log-opt", "max-size=" + logSize}
	}
	return []string{"--log-driver", "json-file", "--log-opt", "max-size=" + logSize, "--log-opt", "max-file=2"}
}

// arg returns the bind in the form of --mount, which is a line of CSV: a path may contain a comma.
// Unlike --volume, --mount makes no directory if the path does not exist.
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

// plain reports whether a name has no special meaning: podman takes "X*" for a pattern.
var plain = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`).MatchString

// variables returns the arguments that pass variables to the container. "--env NAME" takes the
// value from the command's own environment, which only root can read. A variable that the command
// itself obeys cannot be passed this way. The exception is a variable that already has that value
// for the command: the URL of a proxy may contain a password.
func variables(vars []Var) (args, env []string, err error) {
	for _, v := range vars {
		own, set := os.LookupEnv(v.Name)
		switch through := plain(v.Name) && !among(handed, v.Name) && !among(kept, v.Name); {
		case through:
			args, env = append(args, "--env", v.Name), append(env, v.Name+"="+v.Value)
		case !v.Secret && plain(v.Name) && among(handed, v.Name) && set && own == v.Value:
			args = append(args, "--env", v.Name)
		case v.Secret:
			return nil, nil, fmt.Errorf("cannot hand the secret %s to a container: the runtime's own command would take the variable for itself; choose another name, or a mounted file", v.Name)
		default:
			args = append(args, "--env", v.Name+"="+v.Value)
		}
	}

	return args, env, nil
}

func sorted(m map[string]string) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}

	slices.Sort(names)
	return names
}
