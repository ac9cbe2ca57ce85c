package volume

// EarlierHold is a hold of this host that no record explains, as the cluster shows it. For example, the state
// database was lost, or the host has booted from an older snapshot of its disk.
type EarlierHold struct {
	Hold

	// Attached is set if the volume was attached for the hold, to the node with the CSI node id NodeID.
	Attached bool
	NodeID   string

	// Calling is set if an earlier agent of this host may have sent a call for the attachment that has not
	// ended.
	Calling bool
}

// Unexplained returns a record for a hold of this host that no record explains. The agent then takes
// the volume off this host and gives up the hold. Every side is unknown, because nothing shows whether
// the host has made it.
func Unexplained(v Volume, e EarlierHold, stagingPath string) Record {
	r := Record{Volume: v}
	r.Node.StagingPath = stagingPath
	return r.under(e)
}

// AdoptHold returns the record of a volume that waits for a hold, with an earlier hold of this host. It changes
// nothing if the record has a hold. A hold that does not fit the claims is given up.
func AdoptHold(r Record, e EarlierHold) (Record, bool) {
	was := r.Node.Hold
	if was.State == Present || was.Lost {
		return r, false
	}
	r = r.under(e)
	r.Node.Hold.Unfit = was.Access != e.Access || was.Reader != e.Reader
	return r, true
}

// FindAttachment returns the record of a host that gives its hold up, after the cluster has shown an attachment that
// the record lacks. The record comes from an older snapshot of the host's disk. The host detaches the volume first.
// The result changed is false if the record has another hold, or knows the attachment.
func FindAttachment(r Record, operation, nodeID string) (now Record, changed bool) {
	n := &r.Node
	if n.Hold.Operation != operation || n.Hold.State != Failed || n.Hold.Lost || n.Attached != Absent {
		return r, false
	}
	n.Hold.State, n.Hold.Before = Unknown, Kept{}
	n.Attached, n.NodeID, n.Uses.Attach = Unknown, nodeID, true
	return r, true
}

// under returns the record with an earlier hold of unknown state, under which the host may have made any side.
func (r Record) under(e EarlierHold) Record {
	n := &r.Node
	n.Hold = Hold{State: Unknown, Operation: e.Operation, Access: e.Access, Reader: e.Reader, Since: e.Since}
	n.Uses.Stage, n.Staged = true, uncertain(n.Staged)
	if !e.Attached {
		return r
	}

	if n.Attached == Absent {
		n.NodeID = e.NodeID
	}
	n.Uses.Attach, n.Attached = true, uncertain(n.Attached)
	if e.Calling {
		r = r.watching(lateAttach).watching(lateDetach)
	}
	return r
}

// endUnfit chooses a step that leads to the end of a hold that does not fit the claims. The host may have made
// sides under this hold. They are undone first.
func (p upPlanner) endUnfit() bool {
	n := p.r.Node
	late := p.expects(func(w Watch) bool { return w != lateDetach })
	for _, c := range p.claims {
		if p.unpublish(c) {
			return true
		}
	}

	switch {
	case p.anyMounted():
		return false // the planner has already noted why the mounts must wait
	case n.Staged != Absent:
		return p.unstage()
	case late:
		return p.wait(CauseWatch, "a call of unknown outcome may still attach or mount the volume; the host keeps its earlier hold until then")
	case n.Attached != Absent:
		return p.detach()
	default:
		return p.try(Action{Kind: Prove, Yield: true})
	}
}
