// Package command runs plugins as commands on the host. With systemd, each command runs as a
// service. On a host without systemd, the agent forks each command into its own cgroup. The bundled
// driver also runs as a command.
package command

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/agent/supervisor/pluginlog"
	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/agent/supervisor/transient"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/proc"
)

// inherited lists the variables that a plugin inherits from the agent's environment. The agent
// passes on no other variables, because they contain its own settings and credentials, and the
// sockets of its service manager.
var inherited = []string{
	"PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
}

// rescan is the pause before a second search for a process that an earlier agent may have started
// before it died. During the first search, the new process may still have the environment of its
// parent.
const rescan = 50 * time.Millisecond

// Runner runs a plugin as a command. For the bundled driver, the command is the agent's own binary.
// The process has its own session and writes its output to a file, so it keeps running when the
// agent ends.
type Runner struct {
	runner.Part

	builtin  []string // the command line of the bundled driver
	services *transient.Services
}

// New returns the runner of a part. builtin is the command line of the bundled driver.
func New(p runner.Part, builtin []string, services *transient.Services) *Runner {
	return &Runner{Part: p, builtin: builtin, services: services}
}

// Traits implements runner.Runner.
func (r *Runner) Traits() runner.Traits {
	return runner.Traits{
		Owned: true, Ends: true, Socket: r.Paths.Socket, Log: pluginlog.File(r.Paths.Log),
		Fix: runner.Fix{
			Mounts: func(string, bool) string {
				return "start it in the host's mount namespace, or in one that shares its mounts (unshare --propagation shared)"
			},
			Root:    "take out of its command what changes the user",
			Network: "start it in the host's network namespace",
		},
	}
}

// Sweep implements runner.Runner. Nothing remains of a command that has ended, so Sweep only looks
// for a running process.
func (r *Runner) Sweep(ctx context.Context) (runner.Instance, error) { return r.Find(ctx) }

// Quiet implements runner.Runner. It does nothing, because no other program starts the command.
func (r *Runner) Quiet(context.Context) {}

// Find implements runner.Runner.
func (r *Runner) Find(ctx context.Context) (runner.Instance, error) {
	was := r.Record.Process()
	if was.Nonce == "" || was.Boot != r.Boot {
		return nil, nil
	}

	pid, start := was.PID, was.StartTime
	if pid == 0 {
		// An earlier agent stored the intent to start the process, but died before it stored the
		// pid. So the process may exist.
		if pid, start = findNonce(was.Nonce); pid == 0 {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(rescan):
			}

			pid, start = findNonce(was.Nonce)
		}
	}

	if pid == 0 {
		// Perhaps systemd has not started the process yet.
		served, err := r.services.Find(ctx, serviceName(r.Slot, was.Nonce))
		if served == 0 || err != nil {
			return nil, err
		}

		st, err := proc.ReadStat(served)
		if err != nil {
			return nil, nil //nolint:nilerr // the process has ended
		}

		pid, start = served, st.Start
	}

	// A zombie does not count, because it serves no calls.
	if st, err := proc.ReadStat(pid); err != nil || !st.Began(start) || !st.Alive() {
		return nil, nil //nolint:nilerr // no such process is an answer
	}

	r.HideGiven(pid)
	return r.attach(ctx, plugin.Process{Nonce: was.Nonce, PID: pid, StartTime: start, Boot: was.Boot}, r.services.Keep(ctx, pid, serviceName(r.Slot, was.Nonce)))
}

// attach monitors a running process and stores its identity. If served is true, the process runs in
// its own service, and systemd will remember how the process ended.
func (r *Runner) attach(ctx context.Context, it plugin.Process, served bool) (runner.Instance, error) {
	how := func(pid int) string {
		defer dropGroup(r.Slot, it.Nonce)
		return runner.Reap(pid)
	}

	if served {
		how = func(pid int) string { return r.services.End(serviceName(r.Slot, it.Nonce), pid) }
	}

	process, err := runner.OpenProcess(it.PID, it.StartTime, how)
	if served && err == nil && process == nil {
		return runner.Finished(it.PID, how(it.PID)), nil
	}
	if err != nil || process == nil {
		return nil, err
	}
	if err := r.Record.SaveProcess(ctx, it); err != nil {
		// Continue after a failed save, because the stored nonce is enough to find the process
		// again.
		r.Logger.Warn("cannot store which process serves the plugin", "pid", it.PID, "error", err)
	}

	return process, nil
}

// Start implements runner.Runner. The order of its steps matters:
//
//  1. It does all work that can fail before a process exists.
//  2. It stores the nonce. From then on, a process may exist.
//  3. It starts the process with the nonce in its environment. Under systemd, the name of the
//     service also contains the nonce.
//  4. It stores the pid. If the agent dies between steps 2 and 4, Find finds the process.
func (r *Runner) Start(ctx context.Context) (runner.Instance, error) {
	if err := r.Paths.Make(); err != nil {
		return nil, err
	}
	if inst, err := r.clearSocket(ctx); inst != nil || err != nil {
		return inst, err
	}

	cmd, err := r.command(ctx)
	if err != nil {
		return nil, err
	}

	log, err := pluginlog.Open(r.Paths.Log)
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the child has its own descriptor, and the agent wrote nothing here

	cmd.Stdout, cmd.Stderr = log, log

	it := plugin.Process{Nonce: rand.Text(), Boot: r.Boot}
	cmd.Env = append(cmd.Env, pluginfile.EnvIncarnation+"="+it.Nonce)
	if err := r.Record.SaveProcess(ctx, it); err != nil {
		return nil, fmt.Errorf("cannot store that the plugin is being started: %w", err)
	}

	var served bool
	it.PID, served, err = launcher{r.Slot, r.services, r.Logger}.launch(ctx, cmd, it.Nonce)
	if err != nil && !served {
		r.Record.ForgetProcess()
	}
	if err != nil {
		return nil, err
	}

	st, err := proc.ReadStat(it.PID)
	name := serviceName(r.Slot, it.Nonce)
	if served && (err != nil || !transient.InService(it.PID, name)) {
		return runner.Finished(it.PID, r.services.End(name, it.PID)), nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the start time of process %d: %w", it.PID, err)
	}

	it.StartTime = st.Start
	return r.attach(ctx, it, served)
}

// command returns the command to run. It expands the variables in the plugin's file and reads the
// secrets.
func (r *Runner) command(ctx context.Context) (*exec.Cmd, error) {
	value := r.Values
	var argv []string
	env := environment(value)
	if r.Definition.Exec == nil {
		argv = append(slices.Clone(r.builtin),
			"--endpoint="+value(pluginfile.VarEndpoint), "--node-id="+value(pluginfile.VarNodeID), "--state-dir="+value(pluginfile.VarStateDir))
	} else {
		for _, arg := range r.Definition.Exec.Command {
			arg, err := pluginfile.Expand(arg, value)
			if err != nil {
				return nil, fmt.Errorf("cannot expand the command: %w", err)
			}

			argv = append(argv, arg)
		}

		own, err := r.Env(ctx)
		if err != nil {
			return nil, err
		}

		env = append(env, own...)
	}

	if len(argv) == 0 {
		return nil, errors.New("this agent has no builtin plugins")
	}
	if strings.Contains(argv[0], "/") && !strings.HasPrefix(argv[0], "/") {
		return nil, fmt.Errorf("cannot run %q: it is neither an absolute path nor a name in PATH", argv[0])
	}

	path, err := exec.LookPath(argv[0])
	if err != nil {
		var lookup *exec.Error
		if errors.As(err, &lookup) {
			err = lookup.Err
		}

		return nil, transient.StartError(argv[0], err)
	}

	// Do not use exec.CommandContext, because it would end the plugin together with the context.
	return &exec.Cmd{
		Path: path,
		Args: argv,
		Env:  env,
		// The plugin must not keep a volume busy through its working directory.
		Dir:         "/",
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}, nil
}

// environment returns the variables that every plugin gets in its environment.
func environment(value func(string) string) []string {
	var env []string
	for _, name := range inherited {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}

	return append(env, pluginfile.VarEndpoint+"="+value(pluginfile.VarEndpoint))
}

// clearSocket makes the socket path free for a new socket. It removes a socket on which no process
// answers. If this agent's own plugin answers, although the records do not contain the process,
// clearSocket returns the plugin's instance. If any other process answers, clearSocket returns an
// error.
func (r *Runner) clearSocket(ctx context.Context) (runner.Instance, error) {
	who, taken, err := runner.FreeSocket(ctx, r.Paths.Socket)
	if !taken || err != nil {
		return nil, err
	}
	if dir := runner.LogDirOf(who.PID); dir != "" && dir != r.Paths.Dir {
		return nil, fmt.Errorf("%w; an agent with another data dir started it: its log is in %s", runner.TakenError(who, r.Paths.Socket), dir)
	}

	nonce := runner.Environ(who.PID, pluginfile.EnvIncarnation)
	if st, err := proc.ReadStat(who.PID); err == nil && nonce != "" && st.Session == who.PID &&
		runner.Environ(who.PID, pluginfile.VarEndpoint) == r.Values(pluginfile.VarEndpoint) {
		r.Logger.Warn("found a running plugin that has no record", "pid", who.PID)
		return r.attach(ctx, plugin.Process{Nonce: nonce, PID: who.PID, StartTime: st.Start, Boot: r.Boot}, r.services.Keep(ctx, who.PID, serviceName(r.Slot, nonce)))
	}

	return nil, runner.TakenError(who, r.Paths.Socket)
}
