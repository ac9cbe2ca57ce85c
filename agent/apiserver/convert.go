package apiserver

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// Volume returns the volume that a volume file describes.
func Volume(s api.VolumeSpec) volume.Volume { return fromSpec(s) }

// fromSpec converts a volume file into the domain's volume. If the file lists no capabilities, the
// volume gets one: a file system with a single writer.
func fromSpec(s api.VolumeSpec) volume.Volume {
	v := volume.Volume{
		ID: s.ID, Name: s.Name, PluginID: s.PluginID, ExternalID: s.ExternalID,
		SnapshotID: s.SnapshotID, CloneID: s.CloneID, CapacityMin: s.CapacityMin, CapacityMax: s.CapacityMax,
		Parameters: s.Parameters, Mutable: s.Mutable, Context: s.Context, Reclaim: s.Reclaim,
	}

	for _, c := range s.Capabilities {
		c := call.Capability{Access: call.AccessMode(c.AccessMode), Attachment: call.AttachmentMode(c.AttachmentMode)}
		if c.Access == "" {
			c.Access = call.SingleNodeWriter
		}
		if c.Attachment == "" {
			c.Attachment = call.FileSystem
		}
		v.Capabilities = append(v.Capabilities, c)
	}

	if len(v.Capabilities) == 0 {
		v.Capabilities = []call.Capability{{Access: call.SingleNodeWriter, Attachment: call.FileSystem}}
	}
	if s.MountOptions != nil {
		v.MountOptions = call.MountOptions(*s.MountOptions)
	}
	if s.Topology != nil {
		v.Topology = call.TopologyRequest(*s.Topology)
	}
	if v.Reclaim == "" {
		v.Reclaim = "retain"
	}
	for name, ref := range s.Secrets {
		if v.Secrets == nil {
			v.Secrets = map[string]call.SecretRef{}
		}
		v.Secrets[name] = fromSecret(ref)
	}

	return v
}

// fromSecret converts a secret into the domain's type. The agent seals a literal value before it
// stores the value.
func fromSecret(s api.Secret) call.SecretRef {
	ref := call.SecretRef{File: s.File, Credential: s.Credential, Env: s.Env, Keep: s.Sealed}
	if value, ok := s.Literal.Reveal(); ok {
		ref.Literal = call.NewSecret(value)
	}
	return ref
}

// toSecret returns the reference of a secret. For a sealed value, the result shows only that a
// value exists.
func toSecret(ref call.SecretRef) api.Secret {
	return api.Secret{
		File: ref.File, Credential: ref.Credential, Env: ref.Env,
		Sealed: ref.Sealed != "" || ref.Keep || ref.Literal != (call.Secret{}),
	}
}

// toSpec returns a volume file that would register the volume in its present form.
func toSpec(v volume.Volume) api.VolumeSpec {
	s := api.VolumeSpec{
		ID: v.ID, Name: v.Name, PluginID: v.PluginID, ExternalID: v.ExternalID,
		SnapshotID: v.SnapshotID, CloneID: v.CloneID, CapacityMin: v.CapacityMin, CapacityMax: v.CapacityMax,
		Parameters: v.Parameters, Mutable: v.Mutable, Context: v.Context, Reclaim: v.Reclaim,
	}

	for _, c := range v.Capabilities {
		s.Capabilities = append(s.Capabilities, toCapability(c))
	}

	if v.MountOptions.FSType != "" || len(v.MountOptions.MountFlags) > 0 {
		m := api.MountOptions(v.MountOptions)
		s.MountOptions = &m
	}
	if v.Topology.Given() {
		t := api.TopologyRequest(v.Topology)
		s.Topology = &t
	}
	for name, ref := range v.Secrets {
		if s.Secrets == nil {
			s.Secrets = map[string]api.Secret{}
		}
		s.Secrets[name] = toSecret(ref)
	}

	return s
}

func toCapability(c call.Capability) api.Capability {
	return api.Capability{AccessMode: string(c.Access), AttachmentMode: string(c.Attachment)}
}

// toVolume describes the current state of a volume.
func toVolume(r volume.Record, obs volume.Observed, at *volume.Attempt, last volume.Report, owners volume.Owners) api.Volume {
	e := volume.Explain(r, obs, at)
	v := api.Volume{
		Spec: toSpec(r.Volume), State: string(e.State), Summary: e.Summary, Notes: e.Notes,
		Driver: r.Volume.Driver, PluginState: obs.Plugin.State, PluginVersion: obs.Plugin.Info.Version,
		Created: r.Volume.Created, Capacity: r.Volume.Capacity, Topologies: r.Volume.Topologies,
		RegisteredAt: r.Volume.RegisteredAt, Modifying: r.Volume.Modifying,
		Controller: obs.Plugin.Info.Caps.Attach || r.Node.Uses.Attach,
		Attached:   r.Node.Attached.String(), Staged: r.Node.Staged.String(),
		Claims: []api.Claim{}, PendingCalls: r.PendingCalls(),
	}

	if !obs.Plugin.Known {
		v.PluginState = "unknown"
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

// stillMounted summarizes whether a volume's paths are mounted. With anything, which callers set
// for a stuck volume, it answers whether any path is mounted. Otherwise it answers whether the
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

	if anything {
		sights = append(sights, obs.Staging)
	}
	seen := map[string]int{}
	for _, s := range sights {
		switch s.Seen {
		case volume.SeenNothing:
			seen["no"]++
		case volume.SeenMount, volume.SeenDead:
			seen["yes"]++
		default:
			seen["unknown"]++
		}
	}

	telling, otherwise := "no", "yes"
	if anything {
		telling, otherwise = "yes", "no"
	}
	switch {
	case seen[telling] > 0:
		return telling
	case seen["unknown"] > 0:
		return "unknown"
	default:
		return otherwise
	}
}

// way lists the CSI calls in the order in which a volume needs them.
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

// fromClaimRequest returns the terms of a requested claim. It refuses unknown mount options and
// unprintable notes.
func fromClaimRequest(req api.ClaimRequest, p peer.Peer) (volume.Terms, error) {
	flags, err := volume.AtFlags(req.AtFlags)
	if err != nil {
		return volume.Terms{}, err
	}
	if err := api.CheckNote(req.Note); err != nil {
		return volume.Terms{}, err
	}

	return volume.Terms{
		ReadOnly: req.ReadOnly,
		Mode:     call.Capability{Access: call.AccessMode(req.AccessMode), Attachment: call.AttachmentMode(req.AttachmentMode)},
		Owner:    fromOwner(req.Owner, p),
		At:       req.At, AtFlags: flags, AtWritable: req.AtWritable,
		Own: fromOwnership(req.Ownership), Note: req.Note,
	}, nil
}

// toClaim describes a claim in the API's terms.
func toClaim(r volume.Record, c volume.Claim, p plugin.View, owners volume.Owners) api.Claim {
	a := api.Claim{
		Volume: r.Volume.ID, PluginID: r.Volume.PluginID, Alloc: c.Alloc, State: string(c.State), Wanted: c.Wanted,
		ReadOnly: c.ReadOnly, AccessMode: string(c.Mode.Access), AttachmentMode: string(c.Mode.Attachment),
		Owner: toOwner(c.Keeper(), owners), Path: c.Path(), Target: c.Target, At: c.At, Since: c.Since,
		AtFlags: c.AtFlags, AtWritable: c.AtWritable, Note: c.Note,
		Ownership: toOwnership(c.Own.Explicit()), // without a default owner, because the claim does not record whether the agent applied it
	}

	if c.Adopted {
		a.Adopted, a.Remark = true, "adopted"
	}
	if r.Lack(p) != "" {
		a.Remark = strings.TrimPrefix(a.Remark+", plugin unavailable", ", ")
	}
	return a
}

// fromOwnership converts the ownership in a request into the domain's type.
func fromOwnership(o api.Ownership) volume.Ownership {
	text := func(id *uint32) string {
		if id == nil {
			return ""
		}
		return strconv.FormatUint(uint64(*id), 10)
	}

	mode := o.Mode
	if m, err := strconv.ParseUint(mode, 8, 32); err == nil {
		mode = fmt.Sprintf("%04o", m) // 770 and 0770 become the same text
	}
	return volume.Ownership{UID: text(o.UID), GID: text(o.GID), Mode: mode, Recursive: o.Recursive}
}

// toOwnership converts the ownership of a claim into the API's type.
func toOwnership(o volume.Ownership) api.Ownership {
	number := func(id string) *uint32 {
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil
		}
		return new(uint32(n))
	}

	return api.Ownership{UID: number(o.UID), GID: number(o.GID), Mode: o.Mode, Recursive: o.Recursive}
}

// fromOwner converts the owner in a request. It ignores fields that the owner's kind does not use.
// If the owner is a mount and the request names no process, the caller becomes the process.
func fromOwner(o api.Owner, p peer.Peer) volume.Owner {
	switch o.Kind {
	case api.OwnerMount:
		if o.PID == 0 {
			o.PID = p.PID
		}
		return volume.Owner{Kind: volume.OwnerMount, PID: o.PID}
	case api.OwnerPID:
		return volume.Owner{Kind: volume.OwnerPID, PID: o.PID}
	case api.OwnerUnit:
		return volume.Owner{Kind: volume.OwnerUnit, Unit: o.Unit, Invocation: o.Invocation}
	default:
		return volume.Owner{Kind: o.Kind}
	}
}

// toOwner describes an owner and its current state.
func toOwner(o volume.Owner, owners volume.Owners) api.Owner {
	a := api.Owner{Kind: o.Kind, PID: o.PID, Unit: o.Unit, Invocation: o.Invocation, Runtime: o.Runtime}
	if !o.Mortal() {
		return a
	}

	v := owners.View(o)
	a.State, a.Command, a.References = string(v.Life), v.Command, v.References
	if o.Kind == volume.OwnerUnit {
		a.PID = v.PID
	}
	return a
}

// sorted returns the records in ascending order of their ids.
func sorted(rs []volume.Record) []volume.Record {
	byID := make(map[string]volume.Record, len(rs))
	for _, r := range rs {
		byID[r.Volume.ID] = r
	}

	out := make([]volume.Record, 0, len(rs))
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		out = append(out, byID[id])
	}
	return out
}

// toReport converts a plugin's report about a volume.
func toReport(id string, r volume.Report) *api.Report {
	out := &api.Report{Silent: r.Silent}
	if r.Stats != nil {
		st := toStats(id, r)
		out.Stats = &st
	}
	for by, c := range map[string]*volume.Checkup{volume.ByNode: r.Node, volume.ByController: r.Controller} {
		if c == nil {
			continue
		}
		if out.CheckedAt == nil {
			out.CheckedAt = map[string]time.Time{}
		}
		out.CheckedAt[by] = c.At
	}

	for _, f := range r.Findings() {
		out.Health = append(out.Health, toFindings(f.By, []call.Condition{f.Condition})...)
	}

	if r.Storage != nil {
		out.Storage = toStorage(*r.Storage)
		out.Storage.Volume = id
	}
	return out
}
