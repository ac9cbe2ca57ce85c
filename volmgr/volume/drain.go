package volume

import (
	"strconv"

	"github.com/volagent/volagent/volmgr/remedy"
)

// Occupant is a claim or a volume that prevents a host from being empty.
type Occupant struct {
	Volume string
	Alloc  string // empty if the occupant is a volume without claims
	Owner  string // description of the claim's owner; empty if the claim has no owner

	// Message says why the claim or volume is still on the host. It is never empty. Command removes
	// the obstacle. Else is an alternative if Command does not help.
	Message string
	Command remedy.Remedy
	Else    remedy.Remedy
}

// Occupancy lists all claims and volumes that prevent a host from being empty.
type Occupancy struct {
	Waiting []Occupant // claims whose live owners a person must stop
	Left    []Occupant // claims and volumes that the agent is removing from the host
}

// Empty reports whether the host is empty.
func (o Occupancy) Empty() bool { return len(o.Waiting)+len(o.Left) == 0 }

// Occupancy returns the claims and volumes of a record that prevent the host from being empty. The
// record may also be that of a forced deregister. The parameter o is the current observation, and
// at is the last attempt at a step. Occupancy has no side effects.
func (r Record) Occupancy(o Observed, at *Attempt, owners Owners) (all Occupancy) {
	r = Past(r, owners)
	for _, c := range r.Ordered() {
		if c.Wanted && c.Owner.Mortal() {
			all.Waiting = append(all.Waiting, Occupant{
				Volume: r.Volume.ID, Alloc: c.Alloc, Owner: c.owner(owners), Command: c.StopOwner(r.Volume.ID),
				Message: "its owner must be stopped first",
			})

			continue
		}

		all.Left = append(all.Left, describeDetach(r, c, o, at))
	}

	if len(r.Claims) == 0 && r.Held() {
		all.Left = append(all.Left, describeDetach(r, Claim{}, o, at))
	}

	return all
}

func (c Claim) owner(owners Owners) string {
	if owners == nil {
		return c.Keeper().String()
	}
	return c.Keeper().Describe(owners.View(c.Keeper()))
}

// describeDetach describes the progress of a detach. If the claim is empty, describeDetach
// describes the sides of the volume that remain on the host.
func describeDetach(r Record, c Claim, o Observed, at *Attempt) Occupant {
	e := Explain(r, o, at)
	out := Occupant{Volume: r.Volume.ID, Alloc: c.Alloc, Message: e.Summary, Command: e.Fix, Else: e.Else}

	next := Next(r, o)
	switch {
	case at != nil && at.Err != nil:
		out.Message += ": " + at.Err.Error()
		if !at.Err.Remedy.Empty() {
			out.Command = at.Err.Remedy
		}
	case next.Kind == Wait && next.Reason != "":
		out.Message += ": " + next.Reason
	}

	switch how := c.Without.further(); {
	case r.Leftover:
		out.Message = "it was deregistered by force, and is not undone yet: " + out.Message
		out.Command = remedy.Of(remedy.ShowPlugin, r.Volume.PluginID)
		out.Else = remedy.Of(remedy.GiveUpCalls, r.Volume.ID)
	case out.Command.Empty():
		out.Command = remedy.Of(remedy.ShowVolume, r.Volume.ID)
	case c.Alloc == "" || c.Wanted:
	case how != WithPlugin: // this command is milder than the one from Explain, which is the last resort
		out.Else = remedy.Of(remedy.DetachWithout, r.Volume.ID, c.Alloc, string(how))
	}

	return out
}

// further returns the next more forceful way of unmounting without the plugin.
func (w Without) further() Without {
	if w == WithPlugin {
		return ByUmount
	}
	return w.Stronger()
}

// StopOwner returns the remedy that stops the owner of a claim. The parameter id is the id of the
// volume.
func (c Claim) StopOwner(id string) remedy.Remedy {
	force := remedy.Of(remedy.ForceDetach, id, c.Alloc)
	switch c.Owner.Kind {
	case OwnerUnit:
		return remedy.Of(remedy.StopUnit, c.Owner.Unit, id, c.Alloc)
	case OwnerPID:
		return remedy.Of(remedy.EndProcess, strconv.Itoa(c.Owner.PID))
	case OwnerMount:
		if !c.Keeper().ByMount() { // the bind mount does not exist at present
			return force
		}

		return remedy.Of(remedy.Unmount, c.At) // if the mount is busy, umount(8) names the services that use it
	case OwnerRuntime:
		return remedy.Of(remedy.StopContainers, c.Owner.Runtime, c.Owner.Volume)
	default:
		return remedy.Of(remedy.DetachClaim, id, c.Alloc)
	}
}
