package supervisor

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/volagent/volagent/volmgr/volume"
)

// maxSocketPath is sun_path less its final zero (unix(7)).
const maxSocketPath = 107

// paths are a plugin's own places on the host.
type paths struct {
	socketDir string // 0700
	socket    string
	dir       string // 0700
	state     string // 0700
	log       string // 0600
	mountRoot string // 0711: an alloc's own user passes through
}

func (o Options) paths(id string) paths {
	c := volume.PluginComponent(id)
	p := paths{
		socketDir: filepath.Join(o.RuntimeDir, "plugins", c),
		dir:       filepath.Join(o.DataDir, "plugins", c),
		mountRoot: filepath.Join(o.DataDir, "csi", c),
	}
	p.socket = filepath.Join(p.socketDir, "csi.sock")
	p.state = filepath.Join(p.dir, "state")
	p.log = filepath.Join(p.dir, "plugin.log")
	return p
}

// checkSocketPath refuses what cannot be connected to.
func checkSocketPath(path string) error {
	if len(path) > maxSocketPath {
		return fmt.Errorf("socket path %q has %d bytes, and a unix socket's path has at most %d", path, len(path), maxSocketPath)
	}
	return nil
}

// make makes the directories that a plugin needs before it starts.
func (p paths) make() error {
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
		// The mode in force is what is asked for, whatever the umask.
		if err := os.Chmod(d.path, d.mode); err != nil {
			return fmt.Errorf("cannot set the mode of the plugin's directory: %w", err)
		}
	}
	return nil
}

// values gives the variables of a plugin file their values.
func (o Options) values(id string) func(string) string {
	p := o.paths(id)
	return func(name string) string {
		switch name {
		case varEndpoint:
			return "unix://" + p.socket
		case varNodeID:
			return o.NodeID
		case varPluginID:
			return id
		case varStateDir:
			return p.state
		case varMountRoot:
			return p.mountRoot
		default:
			return ""
		}
	}
}
