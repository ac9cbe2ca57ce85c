package service

import (
	"slices"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// toVolume describes the current state of a volume.
func toVolume(r volume.Record, obs volume.Observed, at *volume.Attempt, last volume.Report, owners volume.Owners) api.Volume {
	e := volume.Explain(r, obs, at)
	v := api.Volume{
		Spec: toSpec(r.Volume), State: string(e.State), Summary: e.Summary, Notes: e.Notes,
		Driver: r.Volume.Driver, PluginState: obs.Plugin.State, PluginVersion: obs.Plugin.Info.Version,
		Created: r.Volume.Created, Class: r.Volume.Class, Capacity: r.Volume.Capacity, Topologies: r.Volume.Topologies,
		RegisteredAt: r.Volume.RegisteredAt, Modifying: r.Volume.Modifying,
		Controller: obs.Plugin.Info.Caps.Attach || r.Node.Uses.Attach,
		Attached:   r.Node.Attached.String(), Staged: r.Node.Staged.String(),
		Claims: []api.Claim{}, PendingCalls: r.PendingCalls(),
	}

	if !obs.Plugin.Known {
		v.PluginState = api.Unknown
	}
	if x := r.Volume.Expansion; x != (volume.Expansion{}) {
		v.Expansion = &api.Expansion{Want: x.Want, Node: x.Node}
		if x.Refused != (volume.Refusal{}) {
			v.Expansion.Refused = x.Refused.Err().Error()
		}
	}

	if r.Node.Staged != volume.Absent {
		v.StagingPath = r.Node.StagingPath
	}
	if m := r.Node.Mount; m != nil {
		v.MountSource, v.FSType = m.Device, m.FSType
	}
	if r.Node.Mode != nil {
		c := toCapability(r.Node.Mode.Capability)
		v.Mode = &c
	}
	for _, c := range r.Ordered() {
		v.Claims = append(v.Claims, toClaim(r, c, obs.Plugin, owners))
		if v.FSType == "" && c.Mount != nil {
			v.MountSource, v.FSType = c.Mount.Device, c.Mount.FSType
		}
	}

	if v.Attempt = toAttempt(at); v.Attempt == nil && !e.Fix.Empty() {
		v.Attempt = &api.Attempt{Step: string(volume.Wait)} // the queue has not processed the volume yet
	}
	if v.Attempt != nil {
		v.Attempt.Fix, v.Attempt.Else = suggest.Words(e.Fix), suggest.Words(e.Else)
		v.Notes = slices.DeleteFunc(v.Notes, func(note string) bool { return note == v.Attempt.Waits })
	}
	safe := volume.DataSafe(r, obs, at, last)
	if e.State == volume.StateStuck || e.State == volume.StateDegraded || safe == volume.SafetyNo {
		v.DataSafe, v.StillMounted = string(safe), stillMounted(r, obs, e.State == volume.StateStuck)
	}
	if last.Stats != nil || last.Node != nil || last.Controller != nil {
		v.Report = toReport(r.Volume.ID, last)
	}
	return v
}

// stillMounted reports whether a volume's paths are mounted. With anything, which is meant for a
// stuck volume, the answer is Yes if any path is mounted. Otherwise the answer is Yes only if the
// paths of all wanted claims are mounted.
func stillMounted(r volume.Record, obs volume.Observed, anything bool) string {
	var sights []volume.Sight
	for alloc, c := range r.Claims {
		if !anything && !c.Wanted {
			continue
		}

		sights = append(sights, obs.Targets[alloc])
		if c.At != "" {
			sights = append(sights, obs.Binds[alloc])
		}
	}

	telling, answer := api.No, api.Yes
	if anything {
		sights = append(sights, obs.Staging)
		telling, answer = api.Yes, api.No
	}

	for _, s := range sights {
		seen := api.Unknown
		switch s.Seen {
		case volume.SeenNothing:
			seen = api.No
		case volume.SeenMount, volume.SeenDead:
			seen = api.Yes
		}

		switch seen {
		case telling:
			return telling
		case api.Unknown:
			answer = api.Unknown
		}
	}

	return answer
}

// way lists the CSI calls of a volume in the order in which the agent makes them.
var way = []call.Method{
	call.ControllerPublish, call.NodeStage, call.NodePublish,
	call.NodeUnpublish, call.NodeUnstage, call.ControllerUnpublish,
}

// toAttempt describes the current step of a volume.
func toAttempt(at *volume.Attempt) *api.Attempt {
	if at == nil {
		return nil
	}

	a := &api.Attempt{
		Step: string(at.Action.Kind), Alloc: at.Action.Alloc, Waits: at.Action.Reason, Cause: string(at.Action.Cause),
		Tries: at.Tries, First: at.First, Next: at.Next, Running: at.Running, Progress: at.Progress,
	}
	if i := slices.Index(way, at.Action.Kind); i >= 0 {
		a.Index, a.Of = i+1, len(way)
	}
	if at.Err != nil {
		a.Code, a.Message, a.Retry, a.HeldBy = at.Err.Code, at.Err.Message, string(at.Err.Retry), at.Err.HeldBy
		a.Unsent, a.Unknown = at.Unsent, !at.Unsent && at.Err.Unknown()
	}
	return a
}
