package volume

// Copied is the record of an automatic copy of the state database as it counts after the
// database was lost, if no claim of it is proven and nothing is mounted for it. The copy
// may be minutes old: its claims may have ended, and others may have come and gone. The
// registration and the pending calls are kept. What may be left of the volume is undone,
// as after a release. Its attachment is unknown wherever its plugin has such a call. With
// booted the copy is of another boot, which only an attachment outlives.
func Copied(r Record, o Observed, info PluginInfo, booted bool) Record {
	claims, n := r.Ordered(), &r.Node
	r.Claims, r.Generation, n.Watches, n.Proven = nil, 0, nil, false
	r.Volume.Expansion = Expansion{Node: r.Volume.Expansion.Node} // what was to be made larger may be since
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
	return r.releasingAll(claims, o)
}

// Strangers names the paths of a record at which something is mounted that is not what
// was recorded there.
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
