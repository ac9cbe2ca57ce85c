package volume

// Saving says how soon a change must be on disk.
type Saving int

const (
	// SaveWithNext means with the next commit of any change.
	SaveWithNext Saving = iota
	// SaveAtOnce means soon enough to outlive the agent. The agent does not wait for the commit. If the
	// host goes down before it, so do the mounts that the change describes, and the earlier record
	// leads to the same result.
	SaveAtOnce
	// SaveFirst means before any step that depends on the change.
	SaveFirst
)

// Urgency says how soon a change of a record must be on disk. The agent waits for a change that
// affects the next steps:
//
//   - the intent to use one more side
//   - the proof that nothing here uses a device any more
//   - a wanted side that failed or is no longer as recorded, because it is undone and made again
//
// A caller may wait to hear that a claim is mounted or has ended, but no step depends on that. The
// intent of the claim is on disk, and its next intent will be on disk before any step for it.
// However, no further commit may ever come after a claim was mounted anew. Without a commit, the
// next agent would not recognise the mount as that of the claim. These changes are saved at once.
// All other checkpoints are saved with the next commit.
func Urgency(before, now Record) Saving {
	if is, was := now.Node.Uses, before.Node.Uses; is.Attach && !was.Attach || is.Stage && !was.Stage {
		return SaveFirst
	}
	if now.Volume.Expansion != before.Volume.Expansion {
		return SaveFirst // users see it, and a volume that had to stay unused is used next
	}

	saving, paid := SaveWithNext, len(now.Node.PendingCalls) < len(before.Node.PendingCalls)
	switch {
	case len(before.Claims) == len(now.Claims):
	case len(now.Claims) == 0 && now.Node.Attached != Absent:
		return SaveFirst // ControllerUnpublishVolume is next, and a recorded claim would mean that it is not
	default:
		saving = SaveAtOnce
	}

	for alloc, c := range now.Claims {
		was := before.Claims[alloc]
		switch {
		case c.Wanted && paid, // otherwise the same call would be repeated and undo the next mount
			was.State != c.State && c.State != Mounted && c.State != ControllerDetached,
			c.Wanted && (left(was.Published, c.Published) || left(was.Bound, c.Bound) || left(before.Node.Staged, now.Node.Staged)),
			c.Wanted && before.Node.Attached != Failed && now.Node.Attached == Failed:
			return SaveFirst
		case c.State == Mounted && (was.State != Mounted || remade(was.Mount, c.Mount) || remade(was.BoundMount, c.BoundMount)):
			saving = SaveAtOnce
		}
	}

	return saving
}

// remade reports whether the mount is not the same as before.
func remade(before, now *MountIdentity) bool { return now != nil && now != before }

// left reports whether a side is no longer as it was made, or must be undone.
func left(was, now Side) bool {
	return was == Present && now != Present || was != Failed && now == Failed
}
