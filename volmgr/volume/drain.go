package volume

import (
	"cmp"
	"fmt"
)

// Occupant is one thing that keeps a host from being empty.
type Occupant struct {
	Volume string
	Alloc  string // empty where it is no claim's
	Owner  string // who holds it, in words; empty if nobody does
	// Message says what it waits for, Command is what a person types to end that, and
	// Else what helps where that does not. Only the first is always there.
	Message string
	Command string
	Else    string
}

// Occupancy is all that keeps a host from being empty.
type Occupancy struct {
	Waiting []Occupant // claims whose owners live: a person has to stop those
	Left    []Occupant // what is being taken off the host, or cannot be
}

// Empty reports whether nothing of any volume is on the host.
func (o Occupancy) Empty() bool { return len(o.Waiting)+len(o.Left) == 0 }

// Occupancy is what of a volume, or of a debt, keeps the host from being empty: o is
// what was seen of it, at the step that it is at. It is pure.
func (r Record) Occupancy(o Observed, at *Attempt, owners Owners) (all Occupancy) {
	r = Past(r, owners)
	for _, c := range r.Ordered() {
		if c.Wanted && c.Owner.Mortal() {
			all.Waiting = append(all.Waiting, Occupant{
				Volume: r.Volume.ID, Alloc: c.Alloc, Owner: c.owner(owners), Command: c.StopCommand(r.Volume.ID),
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

// leaving says how far a release is, or with no claim what is left of the volume.
func (r Record) leaving(c Claim, o Observed, at *Attempt) Occupant {
	e := Explain(r, o, at)
	out := Occupant{Volume: r.Volume.ID, Alloc: c.Alloc, Message: e.Summary, Command: e.Fix, Else: e.Else}
	next := Next(r, o)
	switch {
	case at != nil && at.Err != nil:
		out.Message += ": " + at.Err.Error()
		if at.Err.Remedy != "" {
			out.Command = at.Err.Remedy
		}
	case next.Kind == Wait && next.Reason != "":
		out.Message += ": " + next.Reason
	}
	switch how := c.Without.further(); {
	case r.Debt:
		out.Message = "it was deregistered by force, and is not undone yet: " + out.Message
		out.Command = Command("volctl plugin status %s", r.Volume.PluginID)
		out.Else = Command("volctl volume deregister %s -force --forget", r.Volume.ID)
	case out.Command == "":
		out.Command = Command("volctl volume status %s", r.Volume.ID)
	case c.Alloc == "" || c.Wanted:
	case how != WithPlugin: // gentler than what Explain names, which is for good
		out.Else = Command("volctl volume detach %s %s --without-plugin=%s", r.Volume.ID, c.Alloc, string(how))
	}
	return out
}

// further is the next way without the plugin that a release may go.
func (w Without) further() Without {
	if w == WithPlugin {
		return ByUmount
	}
	return w.Stronger()
}

// StopCommand is what ends the owner of a claim on a volume.
func (c Claim) StopCommand(id string) string {
	force := Command("volctl volume detach %s %s --force", id, c.Alloc)
	switch c.Owner.Kind {
	case OwnerUnit:
		return cmp.Or(Command("systemctl stop %s", c.Owner.Unit), force)
	case OwnerPID:
		return Command("kill %d", c.Owner.PID)
	case OwnerMount:
		if !c.Keeper().ByMount() { // nothing is mounted just now
			return force
		}
		return Command("volctl umount %s", c.At) // which names the services that use it
	case OwnerRuntime:
		return fmt.Sprintf("%s stop $(%s)", c.Owner.Runtime, Command("%s ps -q --filter volume=%s", c.Owner.Runtime, c.Owner.Volume))
	default:
		return Command("volctl volume detach %s %s", id, c.Alloc)
	}
}
