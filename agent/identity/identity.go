// Package identity determines the host, boot, mount namespace and data dir of an agent. An agent
// with the records of another host, or a second agent on the same host, could mount a volume twice.
// The package therefore decides whether the agent may call plugins at all.
package identity

import (
	"fmt"
	"os"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// Host gives access to the state of this host during the current boot.
type Host interface {
	Boot() string
	Namespace() uint64
	// Under returns the mounts at and below a path.
	Under(path string) ([]mount.Entry, error)
}

// Identify determines the identity of this host. It also checks that this process has the data dir
// and the mount namespace in which the volumes were mounted. If the mount namespace differs,
// Identify returns the reason in halt. The agent then still answers requests, but does not call
// plugins. Identify writes nothing.
func Identify(db records.Store, nodeID, dataDir string, host Host) (node statedb.Node, halt string, err error) {
	was := db.Node()
	held := attached(db)
	node = was

	switch {
	case node.ID == "" && nodeID != "":
		node.ID = nodeID
	case node.ID == "":
		if node.ID, err = os.Hostname(); err != nil {
			return node, "", fmt.Errorf("cannot tell the node id: %w", err)
		}
	case nodeID != "" && nodeID != node.ID && held != "":
		return node, "", volume.Errorf(volume.ErrRefused, "cannot change the node id from %q to %q while volume %q is attached", node.ID, nodeID, held).
			WithHint("start with the old node id, detach all volumes, then change it")
	case nodeID != "":
		node.ID = nodeID
	}

	if was.DataDir != "" && was.DataDir != dataDir && held != "" {
		return node, "", volume.Errorf(volume.ErrRefused, "this data dir was at %s when volume %q was mounted below it; now it is at %s", was.DataDir, held, dataDir).
			WithHint("move it back, or start with --data-dir %s", was.DataDir)
	}

	node.DataDir = dataDir
	if was.Boot == host.Boot() && was.Namespace != host.Namespace() && held != "" {
		halt = fmt.Sprintf("this agent runs in another mount namespace than the one where volume %q was mounted in this boot, so it sends no call; "+
			"start it as the service does, without options that give it a namespace of its own", held)
		return was, halt, nil
	}

	node.Boot, node.Namespace = host.Boot(), host.Namespace()
	return node, "", nil
}

// Ended reports how the last agent stopped.
func Ended(was, now statedb.Node) volume.Stop {
	booted := was.Boot != "" && was.Boot != now.Boot
	switch {
	case was.Clean && booted:
		return volume.Shut
	case was.Clean:
		return volume.Stopped
	case booted:
		return volume.Rebooted
	default:
		return volume.Crashed
	}
}

// attached returns the id of a volume that is, or may be, on this host. It returns "" if there is
// none.
func attached(db records.Store) string {
	for _, r := range (records.WithLeftovers{Store: db}.Volumes()) {
		if r.Held() {
			return r.Volume.ID
		}
	}

	return ""
}

// MountsBelow returns the mounts below the mount root. It omits a mount on the root itself, and the
// mounts with which the supervisor tests plugins.
func MountsBelow(host interface {
	Under(path string) ([]mount.Entry, error)
}, root string,
) (all []mount.Entry, err error) {
	entries, err := host.Under(root)
	for _, m := range entries {
		if !mount.IsCanary(m) && m.Path != root {
			all = append(all, m)
		}
	}

	return all, err
}

// WarnUnshared logs a warning if mounts below a directory do not propagate to other mount
// namespaces. Without propagation, plugins in another mount namespace fail, and some other plugins
// refuse to work. The agent does not change the propagation, because the mount table belongs to the
// administrator.
func WarnUnshared(host *mount.Host, dir string, log hclog.Logger) {
	switch shared, err := host.Shared(dir); {
	case err != nil:
		log.Warn("cannot look at the mount that volumes go to", "error", err)
	case !shared:
		log.Warn("the directory of all volumes is in no shared mount; some plugins need that",
			"directory", dir, "remedy", fmt.Sprintf("with nothing mounted there: mount --bind %[1]s %[1]s && mount --make-shared %[1]s", dir))
	}
}
