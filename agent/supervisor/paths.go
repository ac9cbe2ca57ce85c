package supervisor

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/volmgr/volume"
)

// maxSocket is the longest path of a socket, in bytes: sun_path without its final zero (unix(7)).
const maxSocket = 107

// paths holds the directories and files of one part on the host.
type paths struct {
	socketDir string // 0700
	socket    string
	dir       string // 0700
	state     string // 0700
	log       string // 0600
	mountRoot string // 0711: the user of an alloc passes through
	staging   string // 0700, below mountRoot; made when needed
}

// stagingDir is the directory below a mount root in which volumes are staged.
const stagingDir = "staging"

// paths returns the part's own directories and files.
func (p *plugin) paths() paths { return p.s.opts.paths(p.id, p.slot) }

// values returns a function that returns the values of the variables in the plugin's file.
func (p *plugin) values() func(string) string { return p.s.opts.values(p.id, p.slot) }

// paths returns the directories and files of a part. All parts of a plugin share the mount root.
func (o Options) paths(id, slot string) paths {
	c := volume.PluginComponent(slot)
	p := paths{
		socketDir: filepath.Join(o.RuntimeDir, "plugins", c),
		dir:       filepath.Join(o.DataDir, "plugins", c),
		mountRoot: filepath.Join(o.DataDir, "csi", volume.PluginComponent(id)),
	}

	p.socket = filepath.Join(p.socketDir, "csi.sock")
	p.state = filepath.Join(p.dir, "state")
	p.log = filepath.Join(p.dir, "plugin.log")
	p.staging = filepath.Join(p.mountRoot, stagingDir)
	return p
}

// make makes the directories that a plugin needs before it starts.
func (p paths) make() error {
	if len(p.socket) > maxSocket {
		return fmt.Errorf("cannot listen on %s: the path has %d bytes, and a socket address takes %d; shorten runtime_dir or the plugin's id",
			p.socket, len(p.socket), maxSocket)
	}

	for _, d := range []struct {
		path string
		mode os.FileMode
	}{
		{p.socketDir, 0o700},
		{p.dir, 0o700},
		{p.state, 0o700},
		{filepath.Dir(p.mountRoot), 0o711},
		{p.mountRoot, 0o711},
	} {
		if err := os.MkdirAll(d.path, d.mode); err != nil {
			return fmt.Errorf("cannot make the plugin's directory: %w", err)
		}
		// Set again, because the umask may have changed the mode.
		if err := os.Chmod(d.path, d.mode); err != nil {
			return fmt.Errorf("cannot set the mode of the plugin's directory: %w", err)
		}
	}

	return nil
}

// values returns a function that returns the values of the variables in a plugin file.
func (o Options) values(id, slot string) func(string) string {
	p := o.paths(id, slot)
	return func(name string) string {
		switch name {
		case pluginfile.VarEndpoint:
			return "unix://" + p.socket
		case pluginfile.VarNodeID:
			return o.NodeID
		case pluginfile.VarPluginID:
			return id
		case pluginfile.VarStateDir:
			return p.state
		case pluginfile.VarMountRoot:
			return p.mountRoot
		default:
			return ""
		}
	}
}
