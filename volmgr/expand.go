package volmgr

import (
	"fmt"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// expandStep expands the storage of a volume, or the mounted volume on this host.
type expandStep struct{ step }

// controllerExpand calls ControllerExpandVolume. The requested size is already on disk. If the
// volume already has this size, the plugin answers OK.
func (s expandStep) controllerExpand() volume.Outcome {
	caps := s.view.Info.Caps
	if !caps.Expand {
		return s.cannot()
	}

	p, secrets, err := s.pluginWithSecrets()
	if err != nil {
		return s.unsent(err)
	}

	c, opts := s.capability()
	got, err := call.Do(s.ctx, p, call.ExpandRequest{
		ExternalID: s.r.Volume.ExternalID, CapacityMin: s.a.Size, CapacityMax: s.most(), Capability: c,
		FSType: opts.FSType, MountFlags: opts.MountFlags, Secrets: secrets,
	})
	if err != nil {
		return s.outcome(err)
	}
	out := volume.Outcome{Capacity: got.Capacity, NodeRequired: got.NodeRequired && caps.NodeExpand}
	switch {
	case got.NodeRequired && !caps.NodeExpand:
		out.Warning = "the plugin says that the node has to expand it as well, and has no such call"
	case got.Capacity < s.a.Size:
		out.Warning = s.tooSmall(got.Capacity)
	}

	return out
}

// nodeExpand calls NodeExpandVolume, which expands the mounted volume to the size of the storage.
func (s expandStep) nodeExpand() volume.Outcome {
	if !s.view.Info.Caps.NodeExpand {
		return s.cannot()
	}

	p, secrets, err := s.pluginWithSecrets()
	if err != nil {
		return s.unsent(err)
	}

	c, opts := s.capability()
	req := call.NodeExpandRequest{
		ExternalID: s.r.Volume.ExternalID, Path: s.a.Path, CapacityMin: s.a.Size, CapacityMax: s.most(), Capability: c,
		FSType: opts.FSType, MountFlags: opts.MountFlags, Secrets: secrets,
	}

	if s.r.Node.Staged != volume.Absent {
		req.StagingPath = s.r.Node.StagingPath
	}

	got, err := call.Do(s.ctx, p, req)
	if err != nil {
		return s.outcome(err)
	}
	out := volume.Outcome{Capacity: got}
	if got != 0 && got < s.a.Size {
		out.Warning = s.tooSmall(got)
	}

	return out
}

// most returns the maximum size of a volume, or 0 if there is no maximum.
func (s expandStep) most() int64 {
	if m := s.r.Volume.CapacityMax; m >= s.a.Size {
		return m
	}
	return 0
}

func (s expandStep) tooSmall(got int64) string {
	return fmt.Sprintf("the plugin answered OK with %s, and %s was asked for", volume.Size(got), volume.Size(s.a.Size))
}

// cannot returns the outcome of a call that the plugin supported earlier, but no longer supports.
func (s expandStep) cannot() volume.Outcome {
	return s.unsent(&volume.CallError{
		Step: string(s.a.Kind), Code: volume.CodeUnimplemented, Message: "the plugin does not have this call", Retry: volume.RetryNever, Answered: true,
	})
}
