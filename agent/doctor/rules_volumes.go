package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

func quote(s string) string { return strconv.Quote(s) }

// volumes reports a volume if its next step fails or waits, or if work remains to be done.
func volumes(p Picture, f *findings) {
	for _, v := range p.Volumes {
		if v.Moving {
			continue
		}

		r := v.Record
		id := r.Volume.ID
		e := volume.Explain(r, v.Observed, v.Attempt)
		status := remedy.Of(remedy.ShowVolume, id)
		do := suggest.Words(e.Fix.Or(status))
		again := fix{kind: wake, volume: r.Key()}
		switch {
		// The function mounts already reports this mount.
		case e.State == volume.StateStuck && inTheWay(v):
		case e.State == volume.StateStuck:
			g := f.add(VolumeStuck, Problem, id, id).what("volume %s is %s%s", quote(id), e.Summary, tried(p.Now, v.Attempt)).then("%s", stuckThen(r, v))
			g.Do = do
			if r.Volume.Provision == volume.Provisioned {
				g.fix("retry now", again)
			}
		case e.State == volume.StateDegraded && !misplaced(v):
			g := f.add(VolumeDegraded, Problem, id, id).what("volume %s is %s%s", quote(id), e.Summary, tried(p.Now, v.Attempt)).then("%s", stuckThen(r, v)).
				fix("retry now", again)
			g.Do = do
		case e.State == volume.StateMounting || e.State == volume.StateDetaching:
			waits(f, v, do)
		}

		if owed := r.PendingCalls(); len(owed) > 0 {
			calls := r.PendingCallState(v.Attempt, v.Observed.Plugin)
			g := f.add(VolumePendingCalls, Warning, id, id).what("volume %s has pending calls: %s", quote(id), strings.Join(owed, "; ")).
				then("%s. Until then the agent does not mount the volume again, and other hosts may be unable to use it", line(errors.New(calls.How))).
				do("volctl plugin status %s", r.Volume.PluginID).fix("retry now", again)
			if calls.Failed {
				g.Do = suggest.Words(calls.GiveUp)
			}
		}

		for _, u := range r.Node.Unseen {
			f.add(VolumeUnseen, Warning, id, u.Path).what("%s of volume %s was unmounted lazily%s", u.Path, quote(id), users(u)).
				then("processes with open files there still use the volume, so it counts as on this host").do("volctl volume status %s", id)
		}

		if x := r.Volume.Expansion; x.Refused.Code != "" {
			f.add(ExpansionRefused, Warning, id, id).what("volume %s was not expanded to %s: %s", quote(id), volume.Size(x.Refused.Size), line(x.Refused.Err())).
				then("the volume keeps its size; no data is affected").do("volctl volume expand %s %s", id, volume.Size(x.Refused.Size))
		}
	}
}

func users(u volume.Unseen) string {
	if len(u.Users) == 0 {
		return ""
	}
	return " while it was in use by " + strings.Join(u.Users, "; ")
}

// misplaced reports whether the function mounts adds a finding for a mount of the volume.
func misplaced(v Volume) bool {
	return slices.ContainsFunc(v.mounts(), func(m spot) bool { return !m.good() })
}

// inTheWay reports whether the volume waits only because one of its mounts hangs or was replaced by
// another mount.
func inTheWay(v Volume) bool {
	a := volume.Next(v.Record, v.Observed)
	failed := v.Attempt != nil && v.Attempt.Err != nil
	return !failed && a.Kind == volume.Wait && (a.Cause == volume.CauseForeign || a.Cause == volume.CauseHung) && misplaced(v)
}

// tried describes the last error of a step and the number of attempts.
func tried(now time.Time, at *volume.Attempt) string {
	if at == nil || at.Err == nil {
		return ""
	}

	words := ": " + at.Err.Error()
	if at.Tries > 0 {
		words += fmt.Sprintf(" (%d times", at.Tries)
		if !at.First.IsZero() {
			words += ", for " + now.Sub(at.First).Round(time.Second).String()
		}
		words += ")"
	}

	return line(fmt.Errorf("%s", words))
}

// stuckThen describes the consequence of a step that fails repeatedly.
func stuckThen(r volume.Record, v Volume) string {
	wanted, leaving := 0, 0
	for _, c := range r.Claims {
		if c.Wanted && c.State != volume.Mounted {
			wanted++
		}
		if !c.Wanted {
			leaving++
		}
	}

	again := "the agent retries by itself"
	if v.Attempt == nil || v.Attempt.Next.IsZero() {
		again = "the agent does not retry by itself"
	}
	switch {
	case r.Volume.Provision != volume.Provisioned:
		return "it is unknown whether the storage exists until you run the command again"
	case leaving > 0:
		return "the volume stays mounted, and other hosts cannot use it. The data is safe, and " + again
	case wanted > 0:
		return "its claims wait. The data is safe, and " + again
	default:
		return "existing mounts stay; " + again
	}
}

// waits reports a volume whose next step must wait until the plugin is ready.
func waits(f *findings, v Volume, do string) {
	r := v.Record
	if a := volume.Next(r, v.Observed); a.Kind != volume.Wait || a.Cause != volume.CausePlugin {
		return
	}

	then := "its claims wait"
	if !slices.ContainsFunc(r.Ordered(), func(c volume.Claim) bool { return c.Wanted }) {
		then = "the volume stays on this host"
	}
	f.add(VolumeWaits, Warning, r.Volume.ID, r.Volume.ID).what("volume %s waits for its plugin: %s", quote(r.Volume.ID), r.Lack(v.Observed.Plugin)).
		then("%s until the plugin is ready; the data is safe", then).Do = do
}

// unknownFor is how long the state of an owner may be unknown before it becomes a finding. A
// restart of systemd takes less time.
const unknownFor = 5 * time.Minute

// owners reports claims if the agent cannot find out whether their owners still run.
func owners(p Picture, f *findings) {
	for _, v := range p.Volumes {
		for _, c := range v.Record.Ordered() {
			view, asked := v.Owners[c.Alloc]
			if !asked || view.Life != volume.LifeUnknown || p.Now.Sub(c.Since) < unknownFor {
				continue
			}
			id := v.Record.Volume.ID
			f.add(OwnerUnknown, Warning, id, id+"/"+c.Alloc).what("it is unknown whether %s, the owner of the claim of %s on volume %s, is alive", c.Owner, quote(c.Alloc), quote(id)).
				then("the agent keeps the claim until it knows. systemd does not answer, or does not know the unit").do("systemctl status %s", ownerUnit(c.Owner))
		}
	}
}

// ownerUnit returns the argument for "systemctl status" that shows an owner.
func ownerUnit(o volume.Owner) string {
	if o.Unit != "" {
		return o.Unit
	}
	return strconv.Itoa(o.PID)
}

// deregistered reports the leftovers of forced deregisters.
func deregistered(p Picture, f *findings) {
	for _, d := range p.Deregistered {
		if len(d.Left) == 0 {
			continue
		}

		v := d.Record.Volume
		g := f.add(VolumeLeftover, Warning, v.ID, v.Driver+"/"+v.ExternalID).what("volume %s was deregistered by force on %s, and leftovers remain: %s", quote(v.ID), d.Since.Format(time.RFC3339), strings.Join(d.Left, "; ")).
			then("%s. Until then the agent does not mount this storage again, and uses these paths for no other volume", line(errors.New(d.Calls.How))).
			do("volctl plugin status %s", v.PluginID).fix("retry now", fix{kind: wake, volume: d.Record.Key()})
		if d.Calls.Failed {
			g.Do = suggest.Words(d.Calls.GiveUp)
		}
	}
}

// tests reports plugin tests that were interrupted and left a volume behind.
func tests(p Picture, f *findings) {
	for _, t := range p.Tests {
		if !t.Running {
			f.add(TestLeft, Warning, t.Plugin, t.Plugin).what("the test of plugin %s that began on %s was interrupted, and its volume %s remains", quote(t.Plugin), t.Begun.Format(time.RFC3339), quote(t.Name)).
				then("until the next test removes the volume, it takes up space in the storage system, and the plugin counts as in use").do("volctl plugin test %s", t.Plugin)
		}
	}
}
