package agent

import (
	"fmt"
	"os"

	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// identify determines the identity of this host. It also checks that this process sees the recorded
// paths and mounts. If not, it returns in halt why no call may be sent; the agent then still
// answers requests. identify writes nothing.
func identify(db records.Store, c Config, host *mount.Host) (node statedb.Node, halt string, err error) {
	was := db.Node()
	held := attached(db)
	node = was

	switch {
	case node.ID == "" && c.NodeID != "":
		node.ID = c.NodeID
	case node.ID == "":
		if node.ID, err = os.Hostname(); err != nil {
			return node, "", fmt.Errorf("cannot tell the node id: %w", err)
		}
	case c.NodeID != "" && c.NodeID != node.ID && held != "":
		return node, "", volume.Errorf(volume.ErrRefused, "cannot change the node id from %q to %q while volume %q is attached", node.ID, c.NodeID, held).
			WithHint("start with the old node id, detach all volumes, then change it")
	case c.NodeID != "":
		node.ID = c.NodeID
	}

	if was.DataDir != "" && was.DataDir != c.DataDir && held != "" {
		return node, "", volume.Errorf(volume.ErrRefused, "this data dir was at %s when volume %q was mounted below it; now it is at %s", was.DataDir, held, c.DataDir).
			WithHint("move it back, or start with --data-dir %s", was.DataDir)
	}

	node.DataDir = c.DataDir
	if was.Boot == host.Boot() && was.Namespace != host.Namespace() && held != "" {
		halt = fmt.Sprintf("this agent runs in another mount namespace than the one where volume %q was mounted in this boot, so it sends no call; "+
			"start it as the service does, without options that give it a namespace of its own", held)
		return was, halt, nil
	}

	node.Boot, node.Namespace = host.Boot(), host.Namespace()
	return node, "", nil
}

// ended reports how the last agent stopped.
func ended(was, now statedb.Node) volume.Stop {
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

// attached returns a volume that is, or may be, on this host, or "" if there is none.
func attached(db records.Store) string {
	for _, r := range (records.WithLeftovers{Store: db}.Volumes()) {
		if r.Held() {
			return r.Volume.ID
		}
	}

	return ""
}

// warnOfPlaces warns of directories that some plugins cannot use.
func (a *agent) warnOfPlaces(host *mount.Host) {
	a.sayShared(host)
	a.c.warnLong(a.log)
}

// sayShared warns if mounts below the data dir do not propagate to other mount namespaces. Plugins
// in another namespace fail then, and so do some that check for propagation. The agent does not
// change that, because the mount table belongs to the administrator.
func (a *agent) sayShared(host *mount.Host) {
	dir := a.c.mountRoot()
	switch shared, err := host.Shared(dir); {
	case err != nil:
		a.log.Warn("cannot look at the mount that volumes go to", "error", err)
	case !shared:
		a.log.Warn("the directory of all volumes is in no shared mount; some plugins need that",
			"directory", dir, "remedy", fmt.Sprintf("with nothing mounted there: mount --bind %[1]s %[1]s && mount --make-shared %[1]s", dir))
	}
}
