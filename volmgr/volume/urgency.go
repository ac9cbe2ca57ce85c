package volume

// Saving says how soon a change has to be on disk.
type Saving int

const (
	// SaveWithNext is by the next commit, whoever makes it.
	SaveWithNext Saving = iota
	// SaveAtOnce is so that it outlives the agent. The commit that follows is not
	// waited for: if the host goes down before it, so do the mounts that it is
	// about, and what was recorded before leads to the same.
	SaveAtOnce
	// SaveFirst is before anything is built on it.
	SaveFirst
)

// Urgency says how soon a change of a record must be on disk. What makes a
// difference to the steps that follow is awaited: the intent to use a further
// side, that nothing here uses a device any more, and that a side which is still
// wanted is no more as recorded, or failed, because it is undone and another is
// made in its place. That a claim is taken, or gone, is only what somebody waits
// for: its intent is on disk, and so is the next one before anything is done for it.
// Of a taken claim that was mounted anew, though, no commit need ever come by
// itself, and the next agent would not know the mount for the claim's.
// All other checkpoints ride with the next commit.
func Urgency(before, now Record) Saving {
	if is, was := now.Node.Uses, before.Node.Uses; is.Attach && !was.Attach || is.Stage && !was.Stage {
		return SaveFirst
	}
	if now.Volume.Expansion != before.Volume.Expansion {
		return SaveFirst // people are told, and what may not be in use meanwhile is used next
	}
	saving, paid := SaveWithNext, len(now.Node.Owed) < len(before.Node.Owed)
	switch {
	case len(before.Claims) == len(now.Claims):
	case len(now.Claims) == 0 && now.Node.Attached != Absent:
		return SaveFirst // it is detached next, and a claim on record would mean that it is not
	default:
		saving = SaveAtOnce
	}
	for alloc, c := range now.Claims {
		was := before.Claims[alloc]
		switch {
		case c.Wanted && paid, // else the same call would hit what is mounted next
			was.State != c.State && c.State != Taken && c.State != ControllerDetached,
			c.Wanted && (left(was.Published, c.Published) || left(was.Bound, c.Bound) || left(before.Node.Staged, now.Node.Staged)),
			c.Wanted && before.Node.Attached != Failed && now.Node.Attached == Failed:
			return SaveFirst
		case c.State == Taken && (was.State != Taken || remade(was.Mount, c.Mount) || remade(was.BoundMount, c.BoundMount)):
			saving = SaveAtOnce
		}
	}
	return saving
}

// remade reports whether there is another mount than before.
func remade(before, now *MountIdentity) bool { return now != nil && now != before }

// left reports whether a side is no more as it was made, or is to be undone.
func left(was, now Side) bool {
	return was == Present && now != Present || was != Failed && now == Failed
}
