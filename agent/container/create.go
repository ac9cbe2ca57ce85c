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

// Spec is what is asked of a container.
type Spec struct {
	Name   string
	Image  string
	Args   []string // follow the image's entrypoint
	Labels map[string]string
	Env    []Var
	// Binds are directories of the host that stand at the same path inside.
	Binds []Bind
	// Volumes are SOURCE:TARGET[:OPTIONS], as both know them.
	Volumes []string
}

// Var is a variable of the container's environment. The value of a secret never
// stands in the argv of a process, where everybody could read it.
type Var struct {
	Name, Value string
	Secret      bool
}

// Bind is a directory of the host. What is mounted below a shared one, on
// either side, is mounted on both.
type Bind struct {
	Path   string
	Shared bool
}

// logSize is from which size the runtime drops what a container wrote.
const logSize = "8m"

// Run makes a container, starts it, and returns its id. The image must be there;
// that it is not is ErrNoImage. After another error there may be a container that
// does not run.
//
// A plugin mounts for the whole host, so there is nothing that a container of it
// is kept from: it is privileged, has the host's network and processes, and runs
// as root whatever its image says. Processes because some drivers enter the
// host's namespaces through process 1, or look after daemons that they started
// earlier, and because a process id means the same inside and outside then; to a
// privileged container that has /dev, a namespace of its own is no barrier. Who
// starts it again, and who asks whether it is healthy, is the agent alone.
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

// logArgs have the runtime keep what the container writes in a file of its own
// and limit that: the drivers that systems have by default may keep nothing, or
// without a limit.
func (r Runtime) logArgs() []string {
	if r.name == "podman" {
		return []string{"--log-driver", "k8s-file", "--log-opt", "max-size=" + logSize}
	}
	return []string{"--log-driver", "json-file", "--log-opt", "max-size=" + logSize, "--log-opt", "max-file=2"}
}

// arg is the bind as --mount wants it, which is a line of CSV: a path may hold
// what separates. Unlike --volume it makes no directory where there is none.
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

// plain is a name that stands for itself: podman takes "X*" for a pattern.
var plain = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`).MatchString

// variables returns the arguments that hand variables to the container. "--env
// NAME" takes the value from the command's own environment, where root alone can
// read it. A name that the command itself obeys cannot be handed over so, unless
// it has that value for itself: the URL of a proxy may hold a password.
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
