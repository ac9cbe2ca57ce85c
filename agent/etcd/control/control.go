// Package control carries out the commands of volctl about the cluster, on the host where volctl
// runs. It works on the data directory of volagent-etcd, and talks to the members. It needs the
// running volagent-etcd of this host for no command.
package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/etcd/hostdir"
	"github.com/volagent/volagent/agent/etcd/member"
	"github.com/volagent/volagent/agent/etcd/wire"
)

// unit is the systemd unit of volagent-etcd.
const unit = "volagent-etcd.service"

// runner carries out one request.
type runner struct {
	wire.Request
	dir hostdir.Dir
	now func() time.Time
}

// Serve reads a request, carries it out, and writes the response. It returns false if the command
// failed.
func Serve(ctx context.Context, in io.Reader, out io.Writer) bool {
	var r wire.Request
	var result any
	err := json.NewDecoder(in).Decode(&r)
	if err != nil {
		err = wire.Errorf(api.CodeInvalid, "use the commands of volctl", "cannot read the request: %v", err)
	} else {
		result, err = run(ctx, r)
	}

	var resp wire.Response
	if err == nil {
		resp.Result, err = json.Marshal(result)
	}
	if err != nil {
		resp.Error = wireError(err)
	}
	_ = json.NewEncoder(out).Encode(resp) // if volctl is gone, nothing reads an error either
	return err == nil
}

func wireError(err error) *api.Error {
	e := &api.Error{Code: api.CodeFailed, Message: err.Error()}
	var known *api.Error
	switch {
	case errors.As(err, &known):
		e.Code, e.Hint = known.Code, known.Hint
	case errors.Is(err, context.DeadlineExceeded):
		e.Code = api.CodeTimeout
	}
	return e
}

func run(ctx context.Context, q wire.Request) (any, error) {
	r := &runner{Request: q, dir: hostdir.Dir{Data: q.DataDir, Config: q.ConfigDir}, now: time.Now}
	if os.Geteuid() != 0 {
		return nil, wire.Errorf(api.CodePermission, "sudo volctl cluster", "the commands of the cluster need root")
	}

	commands := map[string]func(context.Context) (any, error){
		wire.Init: r.init, wire.Join: r.join, wire.Token: r.token, wire.Status: r.status, wire.Leave: r.leave, wire.Remove: r.remove,
		wire.Backup: r.backup, wire.Restore: r.restore, wire.Restored: r.restored, wire.Resume: r.resume,
		wire.Compact: r.compact, wire.Upgrade: r.upgrade,
	}
	f := commands[q.Command]
	if f == nil {
		return nil, wire.Errorf(api.CodeInvalid, "install the same release of volctl and volagent-etcd", "volagent-etcd does not know the command %q", q.Command)
	}
	return f(ctx)
}

// connect loads the state and returns a client for the members.
func (r *runner) connect() (hostdir.State, *member.Client, error) {
	s, err := r.dir.Load()
	if err != nil {
		return s, nil, err
	}
	c, err := member.Connect(r.dir, s)
	return s, c, err
}

// hasSystemd reports whether systemd runs and has the unit. The unit uses the default directory.
func (r *runner) hasSystemd() bool {
	if r.dir.Data != hostdir.DefaultDataDir {
		return false
	}
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return false
	}
	return exec.Command("systemctl", "cat", "--quiet", unit).Run() == nil
}

// start enables and starts the unit, unless the user wants to do that. It reports whether it did. In
// both cases, systemd loads its units again. With cluster.yaml, the agent's unit permits the network.
func (r *runner) start(ctx context.Context) (bool, error) {
	if !r.hasSystemd() {
		return false, nil
	}
	if r.NoStart {
		if out, err := exec.CommandContext(ctx, "systemctl", "daemon-reload").CombinedOutput(); err != nil {
			return false, wire.Errorf(api.CodeFailed, "systemctl daemon-reload", "cannot load the units of systemd again: %v: %s", err, out)
		}
		return false, nil
	}
	if out, err := exec.CommandContext(ctx, "systemctl", "enable", "--now", unit).CombinedOutput(); err != nil {
		return false, wire.Errorf(api.CodeFailed, "journalctl -u volagent-etcd", "cannot start volagent-etcd: %v: %s", err, out)
	}
	return true, nil
}

// stop disables and stops the unit, and waits until no process uses the data directory. A
// volagent-etcd that systemd does not run gets a SIGTERM.
func (r *runner) stop(ctx context.Context, disable bool) (unlock func(), err error) {
	if r.hasSystemd() {
		args := []string{"stop", unit}
		if disable {
			args = []string{"disable", "--now", unit}
		}
		if out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("cannot stop volagent-etcd: %w: %s", err, out)
		}
	}

	const patience = 20 * time.Second
	signalled := false
	for end := time.Now().Add(patience); ; {
		unlock, err := r.dir.Lock()
		if !errors.Is(err, hostdir.ErrLocked) {
			return unlock, err
		}
		if pid := r.dir.Locker(); pid != 0 && !signalled {
			signalled = true
			_ = syscall.Kill(pid, syscall.SIGTERM) // the process may have ended meanwhile
		}
		if time.Now().After(end) {
			return nil, wire.Errorf(api.CodeRefused, "stop it, and run the command again: systemctl stop volagent-etcd", "volagent-etcd still runs")
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// startLines tells how to start volagent-etcd if the command did not.
func startLines(started bool) []string {
	if started {
		return nil
	}
	return []string{"volagent-etcd was not started; start it with: systemctl enable --now volagent-etcd"}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
