package volume

import (
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
)

// These are the values of Volume.Boot. They matter if a host has rebooted and the cluster's store does
// not answer.
const (
	// BootWait means that the volume waits until the store has shown the hold. It is the default.
	BootWait = ""
	// BootTrustLocal means that the host relies on its own record of the hold.
	BootTrustLocal = "trust-local"
)

// Trust records that the host uses its hold after a reboot, although the cluster's store has not shown
// the hold since then. See Volume.Boot.
const Trust call.Method = "trust-hold"

// CheckBoot refuses "boot: trust-local" for a volume that a host must not mount before the cluster's
// store has answered. The parameter info describes the plugin, as far as it is known.
func (v Volume) CheckBoot(info plugin.Info) error {
	if v.Boot != BootTrustLocal {
		return nil
	}
	refuse := func(why string) error {
		return Errorf(ErrRefused, "volume %q cannot have boot: trust-local: %s", v.ID, why).WithHint("use boot: wait, which is the default")
	}

	if !v.Shared {
		return refuse("its scope is host, so it never waits for the cluster")
	}
	if info.Caps.Attach {
		return refuse("plugin " + v.PluginID + " needs " + string(call.ControllerPublish) + ", which the cluster must permit each time")
	}
	return nil
}

// checkBootModes refuses "boot: trust-local" for a volume whose capabilities permit an exclusive use.
func (v Volume) checkBootModes() error {
	switch v.Boot {
	case BootWait:
		return nil
	case BootTrustLocal:
	default:
		return Errorf(ErrInvalid, "boot of volume %q is %q; it is wait or trust-local", v.ID, v.Boot)
	}

	for _, c := range v.Capabilities {
		if !trustworthy(c) {
			return Errorf(ErrInvalid, "volume %q cannot have boot: trust-local with the capability %s, %s: another host may use the volume alone by then", v.ID, c.Access, c.Attachment).
				WithHint("trust-local permits only %s and %s, each with %s", call.MultiNodeMultiWriter, call.MultiNodeReaderOnly, call.FileSystem)
		}
	}
	return nil
}

// trustworthy reports whether two hosts can use a volume with this capability without a decision of the
// cluster. In the mode multi-node-single-writer, only a reader could. The definition counts for all
// hosts, and the writer is one of them, so this mode is not trustworthy either. A block device is not,
// because only a shared file system coordinates its writers.
func trustworthy(c call.Capability) bool {
	together := c.Access == call.MultiNodeMultiWriter || c.Access == call.MultiNodeReaderOnly
	return together && c.Attachment == call.FileSystem
}

// trusts reports whether the host uses its hold after a reboot, because the cluster's store does not
// answer.
func (p *planner) trusts() bool {
	h := p.r.Node.Hold
	return p.o.Cluster.Silent && h.State == Unknown && !h.Lost && p.r.trustsRecord() && !p.o.Plugin.Info.Caps.Attach
}

// trustsRecord reports whether the record suffices to use the hold. The host had the hold and used the
// volume under it before the reboot, without an attachment. All capabilities of the volume are
// trustworthy, so each mode in which another host can use it meanwhile is so, too.
func (r Record) trustsRecord() bool {
	v, n := r.Volume, r.Node
	if !v.Shared || v.Boot != BootTrustLocal || v.checkBootModes() != nil {
		return false
	}

	mode := call.Capability{Access: n.Hold.Access, Attachment: call.FileSystem}
	if n.Mode != nil {
		mode.Attachment = n.Mode.Attachment
	}
	used := n.Boot != "" && !n.Uses.Attach && n.Attached == Absent
	return n.Hold.Unverified && trustworthy(mode) && used
}

// trusted reports whether the host uses a hold that the cluster's store has not shown since the reboot.
func (r Record) trusted() bool { return r.Node.Hold.usable() && r.trustsRecord() }

// SeenHold returns the record of a shared volume after the cluster's store has shown its unverified
// hold, or has shown that it lacks the hold. The result changed is false if that changes nothing.
//
// A hold that the host uses is verified if the store shows it. If the store lacks it, LoseHold is the
// answer. For a hold in the state Unknown, an Acquire must follow. The host may continue to
// trust its record if the store shows the hold, and no longer if the store lacks it.
func SeenHold(r Record, shown bool) (now Record, changed bool) {
	h := &r.Node.Hold
	if waits := h.State == Unknown; !h.Unverified || shown == waits {
		return r, false
	}
	h.Unverified = false
	return r, true
}
