package identity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/config"
	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr/mount"
)

// placeFile is the name of a file in the runtime dir. The file contains the path of the data dir to
// which the runtime dir belongs. A reboot removes the file, and also ends all mounts and plugins.
const placeFile = "data_dir"

// Elsewhere lists the mounts and running plugins of another agent. The other agent has a different
// data dir, but the same runtime dir as this agent.
type Elsewhere struct {
	DataDir string
	Mounts  []mount.Entry

	here    config.Dirs
	plugins []supervisor.Listener
}

// Empty reports whether no agent with another data dir uses the runtime dir.
func (e Elsewhere) Empty() bool { return len(e.Mounts)+len(e.plugins) == 0 }

// Said returns the error message for an agent that must not start anything, because another agent's
// mounts or plugins still exist.
func (e Elsewhere) Said() string {
	var left []string
	if n := len(e.Mounts); n > 0 {
		left = append(left, fmt.Sprintf("%d mounts, as %s", n, e.Mounts[0].Path))
	}
	for _, p := range e.plugins {
		left = append(left, fmt.Sprintf("the plugin at %s (pid %d)", p.Socket, p.PID))
	}

	return fmt.Sprintf("the runtime dir %s is that of an agent with the data dir %s, and this agent has the data dir %s; of the other one are still here: %s. "+
		"Start the agent with the data dir %[2]s, empty the host (volctl node drain), stop the plugins (volctl plugin stop), and change the data dir then",
		e.here.Runtime, e.DataDir, e.here.Data, strings.Join(left, "; "))
}

// LookElsewhere finds the mounts and plugins of another agent that uses the same runtime dir with a
// different data dir. If this agent's state database was moved here from that data dir, there is
// only one agent, and LookElsewhere returns nothing.
func LookElsewhere(ctx context.Context, here config.Dirs, movedFrom string, host Host) (e Elsewhere, err error) {
	e.here = here
	raw, err := os.ReadFile(filepath.Join(here.Runtime, placeFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return e, fmt.Errorf("cannot tell which data dir the runtime dir belongs to: %w", err)
	}

	ours := func(dir string) bool { return dir == "" || dir == movedFrom || sameDir(dir, here.Data) }
	e.DataDir = strings.TrimSpace(string(raw))
	listeners := supervisor.Listeners(ctx, here.Runtime)
	for _, l := range listeners {
		if ours(e.DataDir) && !ours(l.DataDir) { // earlier versions of the agent wrote no placeFile
			e.DataDir = l.DataDir
		}
	}

	if ours(e.DataDir) {
		return Elsewhere{}, nil
	}

	for _, l := range listeners {
		if l.DataDir == e.DataDir {
			e.plugins = append(e.plugins, l)
		}
	}

	e.Mounts, err = MountsBelow(host, config.MountRoot(e.DataDir))
	return e, err
}

// sameDir reports whether two paths refer to the same directory.
func sameDir(a, b string) bool {
	if a == b {
		return true
	}
	one, err := os.Stat(a)
	other, oerr := os.Stat(b)
	return err == nil && oerr == nil && os.SameFile(one, other)
}

// ClaimRuntimeDir records that the runtime dir belongs to this agent's data dir. If an agent with
// another data dir still uses the runtime dir, ClaimRuntimeDir records nothing, and returns the
// mounts and plugins of the other agent.
func ClaimRuntimeDir(ctx context.Context, here config.Dirs, movedFrom string, host Host, log hclog.Logger) (Elsewhere, error) {
	e, err := LookElsewhere(ctx, here, movedFrom, host)
	if err != nil || !e.Empty() {
		return e, err
	}

	path := filepath.Join(here.Runtime, placeFile)
	tmp := path + ".new"
	err = os.WriteFile(tmp, []byte(here.Data+"\n"), 0o644)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		log.Warn("cannot note which data dir uses the runtime dir; a change of data_dir while volumes are mounted is not noticed", "error", err)
	}

	return e, nil
}
