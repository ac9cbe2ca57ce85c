package supervisor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/volume"
)

// inherited lists the variables that a plugin gets from the agent's environment. The plugin does
// not get the others: they hold the agent's own settings, credentials, and the sockets through
// which it talks to its service manager.
var inherited = []string{
	"PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
}

// rescan is the pause before a second search for a process that an agent was about to start when it
// died. At the first search the child may not have its own environment yet.
const rescan = 50 * time.Millisecond

// execRunner runs a command, or the bundled driver as a command of the agent's own binary. The
// process has its own session and writes to a file, so that nothing ties it to the agent.
type execRunner struct {
	p     *plugin
	def   *volume.PluginDefinition
	paths paths
}

// Owned implements runner.
func (r *execRunner) Owned() bool { return true }

// Socket implements runner.
func (r *execRunner) Socket() string { return r.paths.socket }

// Find implements runner.
func (r *execRunner) Find(ctx context.Context) (instance, error) {
	was := r.p.record().Process
	if was.Nonce == "" || was.Boot != r.p.s.boot {
		return nil, nil
	}

	pid, start := was.PID, was.StartTime
	if pid == 0 {
		// The agent died after it stored the intent to start the process, and before it stored the
		// pid. The process may exist.
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
		// systemd may not have started it yet.
		served, err := r.findService(ctx, was.Nonce)
		if served == 0 || err != nil {
			return nil, err
		}

		st, err := proc.ReadStat(served)
		if err != nil {
			return nil, nil //nolint:nilerr // it has ended
		}

		pid, start = served, st.Start
	}

	// A process that has ended, but that its parent has not reaped yet, serves no calls.
	if st, err := proc.ReadStat(pid); err != nil || !st.Began(start) || !st.Alive() {
		return nil, nil //nolint:nilerr // no such process is an answer
	}

	r.p.hideGiven(r.def, pid)
	return r.attach(ctx, volume.PluginProcess{Nonce: was.Nonce, PID: pid, StartTime: start, Boot: was.Boot}, r.keep(ctx, pid, was.Nonce))
}

// hideGiven keeps the secrets that an earlier agent gave a process out of the log that this agent
// shows. It reads them from the environment of the process: the files that they came from may hold
// other values by now.
func (p *plugin) hideGiven(def *volume.PluginDefinition, pid int) {
	for name, v := range def.Env() {
		if v.Secret != nil {
			p.scrub.Add(call.Secrets{name: call.NewSecret(environ(pid, name))})
		}
	}
}

// attach watches a process that runs, and records it. served says that the process is in its own
// service, for which systemd remembers how it ended.
func (r *execRunner) attach(ctx context.Context, it volume.PluginProcess, served bool) (instance, error) {
	how := func(pid int) string {
		defer r.dropGroup(it.Nonce)
		return reap(pid)
	}

	if served {
		how = r.served(it.Nonce)
	}

	proc, err := openProcess(it.PID, it.StartTime, how)
	if served && err == nil && proc == nil {
		return finished(it.PID, how(it.PID)), nil
	}
	if err != nil || proc == nil {
		return nil, err
	}
	if err := r.p.saveProcess(ctx, it, r.def); err != nil {
		// The nonce is stored, and that is enough to find the process again.
		r.p.log.Warn("cannot store which process serves the plugin", "pid", it.PID, "error", err)
	}

	return proc, nil
}

// Start implements runner. The order matters:
//
//  1. All work that can fail without a process is done first.
//  2. The nonce is stored: from here on there may be a process.
//  3. The process is started with the nonce in its environment, and under
//     systemd in a service whose name comes from the nonce.
//  4. Its pid is stored. Find repairs a crash between 2 and 4.
func (r *execRunner) Start(ctx context.Context) (instance, error) {
	if err := r.paths.make(); err != nil {
		return nil, err
	}
	if inst, err := r.clearSocket(ctx); inst != nil || err != nil {
		return inst, err
	}

	cmd, err := r.command(ctx)
	if err != nil {
		return nil, err
	}

	log, err := openLog(r.paths.log)
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the child holds its own; nothing was written here

	cmd.Stdout, cmd.Stderr = log, log

	it := volume.PluginProcess{Nonce: rand.Text(), Boot: r.p.s.boot}
	cmd.Env = append(cmd.Env, pluginfile.EnvIncarnation+"="+it.Nonce)
	if err := r.p.saveProcess(ctx, it, r.def); err != nil {
		return nil, fmt.Errorf("cannot store that the plugin is being started: %w", err)
	}

	var served bool
	if it.PID, served, err = r.launch(ctx, cmd, it.Nonce); err != nil {
		return nil, err
	}

	st, err := proc.ReadStat(it.PID)
	if served && (err != nil || !inService(it.PID, serviceName(r.p.slot, it.Nonce))) {
		return finished(it.PID, r.served(it.Nonce)(it.PID)), nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the start time of process %d: %w", it.PID, err)
	}

	it.StartTime = st.Start
	return r.attach(ctx, it, served)
}

// startError returns the error for a command that could not be run.
func startError(path string, err error) error {
	var perr *fs.PathError
	if errors.As(err, &perr) {
		err = perr.Err
	}
	return fmt.Errorf("cannot run %q: %w", path, err)
}

// command returns the command to run, with its variables expanded and its secrets read.
func (r *execRunner) command(ctx context.Context) (*exec.Cmd, error) {
	value := r.p.values()
	var argv []string
	env := environment(value)
	if r.def.Exec == nil {
		argv = append(slices.Clone(r.p.s.opts.BuiltinArgv),
			"--endpoint="+value(pluginfile.VarEndpoint), "--node-id="+value(pluginfile.VarNodeID), "--state-dir="+value(pluginfile.VarStateDir))
	} else {
		for _, arg := range r.def.Exec.Command {
			arg, err := pluginfile.Expand(arg, value)
			if err != nil {
				return nil, fmt.Errorf("cannot expand the command: %w", err)
			}

			argv = append(argv, arg)
		}

		own, err := r.p.ownEnv(ctx, r.def, value)
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

		return nil, startError(argv[0], err)
	}

	// Not CommandContext: the end of a context must not end the plugin.
	return &exec.Cmd{
		Path: path,
		Args: argv,
		Env:  env,
		// A directory that keeps no volume busy.
		Dir:         "/",
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}, nil
}

// environment returns the variables that every plugin gets.
func environment(value func(string) string) []string {
	var env []string
	for _, name := range inherited {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}

	return append(env, pluginfile.VarEndpoint+"="+value(pluginfile.VarEndpoint))
}

// clearSocket frees the path for a new socket. It unlinks a socket on which no process answers. It
// takes back a process of this agent that was forgotten because the state was lost. It leaves any
// other process alone.
func (r *execRunner) clearSocket(ctx context.Context) (instance, error) {
	who, taken, err := freeSocket(ctx, r.paths.socket)
	if !taken || err != nil {
		return nil, err
	}
	if dir := logDirOf(who.pid); dir != "" && dir != r.paths.dir {
		return nil, fmt.Errorf("%w; an agent with another data dir started it: its log is in %s", takenError(who, r.paths.socket), dir)
	}

	nonce := environ(who.pid, pluginfile.EnvIncarnation)
	if st, err := proc.ReadStat(who.pid); err == nil && nonce != "" && st.Session == who.pid &&
		environ(who.pid, pluginfile.VarEndpoint) == r.p.values()(pluginfile.VarEndpoint) {
		r.p.log.Warn("found a running plugin that was not on record", "pid", who.pid)
		return r.attach(ctx, volume.PluginProcess{Nonce: nonce, PID: who.pid, StartTime: st.Start, Boot: r.p.s.boot}, r.keep(ctx, who.pid, nonce))
	}

	return nil, takenError(who, r.paths.socket)
}

// freeSocket frees the path for a new socket: it unlinks one on which no process answers. If a
// process answers, taken is true and freeSocket returns that process.
func freeSocket(ctx context.Context, path string) (who peer, taken bool, err error) {
	switch who, err = connect(ctx, path); {
	case err == nil:
		return who, true, nil
	case errors.Is(err, fs.ErrNotExist):
		return peer{}, false, nil
	case errors.Is(err, syscall.ECONNREFUSED):
		return peer{}, false, unlinkSocket(path)
	default:
		return peer{}, false, fmt.Errorf("cannot use socket %s: %w", path, err)
	}
}

func takenError(who peer, path string) error {
	return fmt.Errorf("cannot start it: somebody else (pid %d) answers on its socket %s", who.pid, path)
}

// unlinkSocket removes a dead socket. It removes no other kind of file.
func unlinkSocket(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("cannot use socket %s: something that is no socket is there", path)
	}
	if err == nil {
		err = os.Remove(path)
	}

	if err != nil {
		return fmt.Errorf("cannot remove the dead socket: %w", err)
	}

	return nil
}
