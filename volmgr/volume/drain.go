package volume

import (
	"strconv"

	"github.com/volagent/volagent/volmgr/remedy"
)

// Occupant is one claim or volume that keeps a host from being empty.
type Occupant struct {
	Volume string
	Alloc  string // empty if it is not a claim
	Owner  string // the owner of the claim, in words; empty if there is none

	// Message says why it is still on the host. It is always set. Command is the command that ends
	// this, and Else is the alternative if Command does not help.
	Message string
	Command remedy.Remedy
	Else    remedy.Remedy
}

// Occupancy lists everything that keeps a host from being empty.
type Occupancy struct {
	Waiting []Occupant // claims with live owners, which a person has to stop
	Left    []Occupant // claims and volumes that the agent is taking off the host, or cannot
}

// Empty reports whether nothing of any volume is on the host.
func (o Occupancy) Empty() bool { return len(o.Waiting)+len(o.Left) == 0 }

// Occupancy returns the parts of a record that keep the host from being empty. The record may be
// one that a forced deregister kept. o is the current observation, and at is the last attempt at a
// step. Occupancy is pure.
func (r Record) Occupancy(o Observed, at *Attempt, owners Owners) (all Occupancy) {
	r = Past(r, owners)
	for _, c := range r.Ordered() {
		if c.Wanted && c.Owner.Mortal() {
			all.Waiting = append(all.Waiting, Occupant{
				Volume: r.Volume.ID, Alloc: c.Alloc, Owner: c.owner(owners), Command: c.StopOwner(r.Volume.ID),
				Message: "its owner is to be stopped first",
			})

			continue
		}

		all.Left = append(all.Left, r.leaving(c, o, at))
	}

	if len(r.Claims) == 0 && r.Held() {
		all.Left = append(all.Left, r.leaving(Claim{}, o, at))
	}

	return all
}

func (c Claim) owner(owners Owners) string {
	if owners == nil {
		return c.Keeper().String()
	}
	return c.Keeper().Describe(owners.View(c.Keeper()))
}

// leaving describes the progress of a detach or, with an empty claim, the remains of the volume.
func (r Record) leaving(c Claim, o Observed, at *Attempt) Occupant {
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
	case how != WithPlugin: // gentler than the command of Explain, which is final
		out.Else = remedy.Of(remedy.DetachWithout, r.Volume.ID, c.Alloc, string(how))
	}

	return out
}

// further returns the next stronger means for a detach without the plugin.
func (w Without) further() Without {
	if w == WithPlugin {
		return ByUmount
	}
	return w.Stronger()
}

// StopOwner returns the remedy that ends the owner of a claim on a volume.
func (c Claim) StopOwner(id string) remedy.Remedy {
	force := remedy.Of(remedy.ForceDetach, id, c.Alloc)
	switch c.Owner.Kind {
	case OwnerUnit:
		return remedy.Of(remedy.StopUnit, c.Owner.Unit, id, c.Alloc)
	case OwnerPID:
		return remedy.Of(remedy.EndProcess, strconv.Itoa(c.Owner.PID))
	case OwnerMount:
		if !c.Keeper().ByMount() { // nothing is mounted there at the moment
			return force
		}

		return remedy.Of(remedy.Unmount, c.At) // it names the services that use the mount
	case OwnerRuntime:
		return remedy.Of(remedy.StopContainers, c.Owner.Runtime, c.Owner.Volume)
	default:
		return remedy.Of(remedy.DetachClaim, id, c.Alloc)
	}
}
