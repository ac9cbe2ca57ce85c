package volume

// Copied prepares a record from an automatic copy of the state database, after the database was
// lost. It is for a record without a proven claim and without a mount. The copy may be minutes old:
// its claims may have ended, and others may have come and gone.
//
// Copied keeps the registration and the pending calls. It marks the rest to be undone, as after a
// detach. If the plugin has ControllerPublishVolume, it is unknown whether the volume is connected.
// booted means that the copy is from another boot. Only a connection survives a reboot.
func Copied(r Record, o Observed, info PluginInfo, booted bool) Record {
	claims, n := r.Ordered(), &r.Node
	r.Claims, r.Generation, n.Watches, n.Proven = nil, 0, nil, false
	r.Volume.Expansion = Expansion{Node: r.Volume.Expansion.Node} // the expansion may have finished since
	mayAttach := info.Caps.Attach && r.Volume.ExternalID != ""
	if mayAttach || n.Attached != Absent {
		n.Attached, n.Uses.Attach = Unknown, true
	}
	if n.NodeID == "" {
		n.NodeID = info.NodeID
	}
	if booted {
		return NextBoot(r)
	}

	return r.detachingAll(claims, o)
}

// Strangers returns the paths of the record at which something other than the recorded mount is
// mounted.
func (r Record) Strangers(o Observed) (paths []string) {
	note := func(path string, s Sight, m *MountIdentity) {
		if path != "" && s.Seen != SeenNothing && !s.Is(m) {
			paths = append(paths, path)
		}
	}

	note(r.Node.StagingPath, o.Staging, r.Node.Mount)
	for _, c := range r.Ordered() {
		note(c.Target, o.Targets[c.Alloc], c.Mount)
		note(c.At, o.Binds[c.Alloc], c.BoundMount)
	}

	return paths
}
