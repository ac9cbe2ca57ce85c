package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr/mount"
)

// placeFile, in the runtime dir, contains the path of the data dir that the agent with this runtime
// dir uses. It ends with the boot, like the mounts and plugins that it protects.
const placeFile = "data_dir"

// elsewhere lists the mounts and running plugins of an agent with another data dir. Its plugins
// listen in the runtime dir that this agent uses too.
type elsewhere struct {
	dataDir string
	mounts  []mount.Entry
	plugins []supervisor.Listener
}

func (e elsewhere) empty() bool { return len(e.mounts)+len(e.plugins) == 0 }

// said explains why this agent must not start anything.
func (e elsewhere) said(c Config) string {
	var left []string
	if n := len(e.mounts); n > 0 {
		left = append(left, fmt.Sprintf("%d mounts, as %s", n, e.mounts[0].Path))
	}
	for _, p := range e.plugins {
		left = append(left, fmt.Sprintf("the plugin at %s (pid %d)", p.Socket, p.PID))
	}

	return fmt.Sprintf("the runtime dir %s is that of an agent with the data dir %s, and this agent has the data dir %s; of the other one are still here: %s. "+
		"Start the agent with the data dir %[2]s, empty the host (volctl node drain), stop the plugins (volctl plugin stop), and change the data dir then",
		c.RuntimeDir, e.dataDir, c.DataDir, strings.Join(left, "; "))
}

// lookElsewhere finds mounts and plugins of an agent with another data dir in this runtime dir. If
// the state database was moved here from that data dir, it is the same agent, and lookElsewhere
// returns nothing.
func lookElsewhere(ctx context.Context, c Config, movedFrom string, host *mount.Host) (e elsewhere, err error) {
	raw, err := os.ReadFile(filepath.Join(c.RuntimeDir, placeFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return e, fmt.Errorf("cannot tell which data dir the runtime dir belongs to: %w", err)
	}

	ours := func(dir string) bool { return dir == "" || dir == movedFrom || sameDir(dir, c.DataDir) }
	e.dataDir = strings.TrimSpace(string(raw))
	listeners := supervisor.Listeners(ctx, c.RuntimeDir)
	for _, l := range listeners {
		if ours(e.dataDir) && !ours(l.DataDir) { // an earlier version of the agent wrote no placeFile
			e.dataDir = l.DataDir
		}
	}

	if ours(e.dataDir) {
		return elsewhere{}, nil
	}

	for _, l := range listeners {
		if l.DataDir == e.dataDir {
			e.plugins = append(e.plugins, l)
		}
	}

	entries, err := host.Under(filepath.Join(e.dataDir, "csi"))
	for _, m := range entries {
		// The directory of all mounts may itself be a mount.
		if !mount.IsCanary(m) && m.Path != filepath.Join(e.dataDir, "csi") {
			e.mounts = append(e.mounts, m)
		}
	}

	return e, err
}

// sameDir reports whether two paths lead to the same directory.
func sameDir(a, b string) bool {
	if a == b {
		return true
	}
	one, err := os.Stat(a)
	other, oerr := os.Stat(b)
	return err == nil && oerr == nil && os.SameFile(one, other)
}

// claimRuntimeDir records that the runtime dir belongs to this data dir. If another data dir still
// uses it, claimRuntimeDir returns in halt why this agent must not start anything.
func (a *agent) claimRuntimeDir(ctx context.Context, host *mount.Host) (halt string, err error) {
	e, err := lookElsewhere(ctx, a.c, a.db.Node().DataDir, host)
	if err != nil {
		return "", err
	}
	if !e.empty() {
		a.otherDataDir = e.dataDir
		return e.said(a.c), nil
	}

	path := filepath.Join(a.c.RuntimeDir, placeFile)
	tmp := path + ".new"
	err = os.WriteFile(tmp, []byte(a.c.DataDir+"\n"), 0o644)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		a.log.Warn("cannot note which data dir uses the runtime dir; a change of data_dir while volumes are mounted is not noticed", "error", err)
	}

	return "", nil
}
