package doctor

import (
	"time"

	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// These durations separate normal delays from problems. A step of a volume, and the delivery of a
// change by etcd, take less time.
const (
	unusedFor = 30 * time.Second // for a hold without mounts
	lateFor   = 10 * time.Second // for the watch
	skew      = 30 * time.Second // the greatest difference between the clocks of two hosts
)

// compareAgain is the fix that compares the records of this host with the cluster.
func compareAgain(id string) (words string, f fix) {
	return "compare the holds of this host with the cluster again", fix{kind: compare, volume: id}
}

// membership reports a cluster that is not reachable, and a watch that is late.
func membership(p Picture, f *findings) {
	c := p.Cluster
	if held := p.heldShared(); !c.Joined && p.Halt == "" && held > 0 {
		f.add(ClusterUnreachable, Problem, "agent", "agent").what("the configuration of this host has no section cluster, and this host has holds on shared volumes: %d", held).
			then("the agent leaves these volumes as they are, and refuses their use. No other host can use the ones for a single host").do("volctl volume list")
	}
	switch {
	case c.Away != "":
		f.add(ClusterUnreachable, Problem, "agent", "agent").what("the cluster is not usable since %s (%s): %s", c.Since.Format(time.RFC3339), age(p.Now, c.Since), c.Away).
			then("mounted volumes stay, and further claims under the holds of this host work. A new hold waits, and ControllerPublishVolume waits").do("volctl node status")
	case c.Err != nil:
		f.add(ClusterUnreachable, Warning, "agent", "agent").what("cannot read the cluster: %s", line(c.Err)).
			then("the holds and calls of the cluster were not examined").do("volctl node status")
	}

	if c.Lag > lateFor {
		g := f.add(ClusterWatchLate, Warning, "agent", "agent").what("the watch of the cluster is late: a change by this host has not come back for %s", c.Lag.Round(time.Second)).
			then("claims that wait for another host, and changes of shared volumes, are noticed late. Mounted volumes stay. A restart of the agent begins a new watch").do("volctl node status")
		if unit := p.System.Unit; unit != "" && c.Away == "" {
			g.do("systemctl restart %s", unit)
		}
	}
}

// heldShared returns the number of shared volumes that this host holds, as its records show.
func (p Picture) heldShared() (n int) {
	for _, v := range p.Volumes {
		if v.Record.Volume.Shared && v.Record.Held() {
			n++
		}
	}
	return n
}

// age describes how long ago a time was.
func age(now, t time.Time) string { return "for " + now.Sub(t).Round(time.Second).String() }

// holds compares the holds of this host in the cluster with its records and mounts.
func holds(p Picture, f *findings) {
	if p.Cluster.Away != "" || p.Cluster.Err != nil || !p.Cluster.Joined {
		return
	}

	for _, c := range p.compared() {
		compareHold(p, f, c)
	}
	for _, h := range p.stray() {
		if p.Now.Sub(h.Since) > unusedFor {
			f.add(HoldUnused, Warning, h.Volume, h.Volume).what("the cluster shows a hold of this host on volume %s since %s, which no record of this host explains", quote(h.Volume), h.Since.Format(time.RFC3339)).
				then("no other host can use the volume until this host has given the hold up. No data is affected").do("volctl node status").fix(compareAgain(h.Volume))
		}
	}
}

// compareHold compares the record of a shared volume with the hold in the cluster.
func compareHold(p Picture, f *findings, c comparison) {
	r, id := c.Record, c.Record.Volume.ID
	h, mounted := r.Node.Hold, c.anyMount()
	usable := h.State == volume.Present && !h.Lost
	unheld := c.hold == nil || h.Lost || h.State == volume.Absent || h.State == volume.Failed

	switch {
	case mounted && unheld:
		f.add(MountUnheld, Problem, id, id).what("volume %s is mounted on this host without a hold: %s", quote(id), lack(h)).
			then("another host may write to the volume at the same time, and both may damage the data. The agent unmounts it and ends its claims. A process that has files open there prevents that").
			do("volctl volume status %s", id).fix(compareAgain(r.Key()))
	case c.hold != nil && usable && c.hold.Token != h.Token:
		f.add(HoldStale, Problem, id, id).what("this host has token %s for its hold on volume %s, and the cluster shows token %s", h.Token, quote(id), c.hold.Token).
			then("%s", staleThen(h.Token, c.hold.Token)).do("volctl volume status %s", id).fix(compareAgain(r.Key()))
	case c.hold != nil && len(r.Claims) == 0 && !mounted && p.Now.Sub(c.hold.Since) > unusedFor:
		f.add(HoldUnused, Warning, id, id).what("this host holds volume %s since %s, and has neither a claim nor a mount of it%s", quote(id), c.hold.Since.Format(time.RFC3339), tried(p.Now, c.Attempt)).
			then("no other host can use the volume until this host has given the hold up. No data is affected").do("volctl volume status %s", id).
			fix("retry now", fix{kind: wake, volume: r.Key()})
	}
}

// anyMount reports whether any mount of the volume was observed, or may exist and did not answer.
func (c comparison) anyMount() bool {
	sights := []volume.Sight{c.Observed.Staging}
	for _, s := range c.Observed.Targets {
		sights = append(sights, s)
	}
	for _, s := range sights {
		if s.Seen == volume.SeenMount || s.Seen == volume.SeenHung || s.Seen == volume.SeenDead {
			return true
		}
	}
	return false
}

// lack describes why a host has no usable hold.
func lack(h volume.Hold) string {
	switch {
	case h.Lost:
		return "the cluster no longer shows its hold of " + h.Since.Format(time.RFC3339)
	case h.State == volume.Present:
		return "the agent's record has a hold of " + h.Since.Format(time.RFC3339) + ", and the cluster has none"
	default:
		return "the agent's record has none"
	}
}

// staleThen describes the consequence of two different tokens.
func staleThen(own, cluster volume.Token) string {
	if own.Epoch != cluster.Epoch {
		return "etcd was restored after this host had got its hold. The hold stays until a person has resumed the cluster; nothing is unmounted"
	}
	return "this host has lost its hold and has got another one. The claims of the earlier hold end, because another host may have used the volume in between"
}

// calls reports announced controller calls that should have ended.
func calls(p Picture, f *findings) {
	for _, c := range p.Cluster.Calls {
		// A call of unknown outcome stays announced for a second deadline, in which it may have an effect.
		if p.Now.Sub(c.Since) <= 2*c.Deadline+skew {
			continue
		}

		state := ""
		if c.State != "" {
			state = ", which is " + string(c.State) + ","
		}
		g := f.add(ClusterCallOpen, Warning, c.Volume, c.Volume).what("host %s%s announced %s for volume %s on %s (%s) and has not ended the call", quote(c.Executor), state, c.Call.Call, quote(c.Volume), c.Since.Format(time.RFC3339), age(p.Now, c.Since)).
			then("no other host calls the plugin for this volume until then, and no host can mount the volume newly. Mounts stay")

		switch c.State {
		case shared.HostGone, shared.HostAway:
			g.Then += ". Start the agent of " + quote(c.Executor) + " again; if the machine is gone for ever, replace the host"
			g.do("volctl node status %s", c.Executor)
		default:
			g.Then += ". The agent of " + quote(c.Executor) + " repeats the call; its log has the errors"
			g.do("volctl volume status %s", c.Volume)
		}
	}
}

// conflicts reports keys of the cluster that contradict each other, and volumes of this host that
// exclude another use in the cluster.
func conflicts(p Picture, f *findings) {
	for _, text := range p.Cluster.Contradictions {
		f.add(ClusterKeys, Warning, "agent", text).what("the keys of the cluster contradict each other: %s", text).
			then("claims of the volume may be refused on all hosts until a person has examined it. Mounts stay").do("volctl volume list")
	}
	for _, c := range p.Cluster.Conflicts {
		g := f.add(VolumeConflict, Problem, c.Volume, string(c.Kind)+"/"+c.Volume)
		switch c.Kind {
		case SameID:
			g.what("volume %s is a volume of this host, and the cluster has a shared volume with the same id", quote(c.Volume)).
				then("new claims of %s are refused on this host, because either volume may be meant. Mounted claims stay", quote(c.Volume)).do("volctl volume deregister %s", c.Volume)
		case SameStorage:
			g.what("volume %s of this host uses the same storage as shared volume %s", quote(c.Volume), quote(c.Other)).
				then("the cluster does not know that this host uses the storage. Another host may mount it at the same time, and both may damage the data").
				commands(suggest.Command("volctl volume detach %s --all", c.Volume), suggest.Command("volctl volume deregister %s", c.Volume))
		case TwoHolders:
			g.what("this host and host %s both hold volume %s, which one host may use", quote(c.Other), quote(c.Volume)).
				then("both hosts may write to the volume and damage the data. A person must decide which host keeps it").
				commands(suggest.Words(remedy.Of(remedy.ShowVolume, c.Volume)), suggest.Command("volctl volume detach %s --all", c.Volume))
		}
	}
}
