// Package part describes one part of a plugin: its key, its files, its desired state and its actual
// state. The package decides the next step of a part. The caller then carries out this step.
package part

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/volmgr/volume"
)

// maxSocket is the maximum length of a socket's path in bytes: the size of sun_path without the
// final NUL (unix(7)).
const maxSocket = 107

// StagingDir is the directory below a mount root in which volumes are staged.
const StagingDir = "staging"

// Dirs contains the agent's base directories. Each part has its own directories below them.
type Dirs struct {
	Data    string // base directory of states, logs and mount roots
	Runtime string // base directory of sockets
}

// Paths contains the paths of one part's directories and files on the host.
type Paths struct {
	SocketDir string // mode 0700
	Socket    string
	Dir       string // mode 0700
	State     string // mode 0700
	Log       string // mode 0600
	MountRoot string // mode 0711, so that the user of an alloc can reach the volumes below
	Staging   string // mode 0700; below MountRoot, and created when it is first needed
}

// Paths returns the directories and files of a part. All parts of a plugin share the mount root.
func (d Dirs) Paths(id, slot string) Paths {
	c := volume.PluginComponent(slot)
	p := Paths{
		SocketDir: filepath.Join(d.Runtime, "plugins", c),
		Dir:       filepath.Join(d.Data, "plugins", c),
		MountRoot: filepath.Join(d.MountRoots(), volume.PluginComponent(id)),
	}

	p.Socket = filepath.Join(p.SocketDir, "csi.sock")
	p.State = filepath.Join(p.Dir, "state")
	p.Log = filepath.Join(p.Dir, "plugin.log")
	p.Staging = filepath.Join(p.MountRoot, StagingDir)
	return p
}

// MountRoots returns the directory that contains the mount roots of all plugins.
func (d Dirs) MountRoots() string { return filepath.Join(d.Data, "csi") }

// Sockets returns the paths of the sockets of all parts, for a runtime dir.
func Sockets(runtimeDir string) []string {
	// Glob fails only for an invalid pattern, and this pattern is valid
	all, _ := filepath.Glob(filepath.Join(runtimeDir, "plugins", "*", "csi.sock"))
	return all
}

// Make creates the directories that a plugin needs before it starts.
func (p Paths) Make() error {
	if len(p.Socket) > maxSocket {
		return fmt.Errorf("cannot listen on %s: the path has %d bytes, and a socket address takes %d; shorten runtime_dir or the plugin's id",
			p.Socket, len(p.Socket), maxSocket)
	}

	for _, d := range []struct {
		path string
		mode os.FileMode
	}{
		{p.SocketDir, 0o700},
		{p.Dir, 0o700},
		{p.State, 0o700},
		{filepath.Dir(p.MountRoot), 0o711},
		{p.MountRoot, 0o711},
	} {
		if err := os.MkdirAll(d.path, d.mode); err != nil {
			return fmt.Errorf("cannot make the plugin's directory: %w", err)
		}
		// Set the mode again, because the umask may have changed it.
		if err := os.Chmod(d.path, d.mode); err != nil {
			return fmt.Errorf("cannot set the mode of the plugin's directory: %w", err)
		}
	}

	return nil
}

// Values returns a function that returns the value of a plugin file's variable.
func (p Paths) Values(id, nodeID string) func(string) string {
	return func(name string) string {
		switch name {
		case pluginfile.VarEndpoint:
			return "unix://" + p.Socket
		case pluginfile.VarSocket:
			return p.Socket
		case pluginfile.VarNodeID:
			return nodeID
		case pluginfile.VarPluginID:
			return id
		case pluginfile.VarStateDir:
			return p.State
		case pluginfile.VarMountRoot:
			return p.MountRoot
		default:
			return ""
		}
	}
}
