package volmgr

import (
	"fmt"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// A plugin's list of published nodes may not show the last call yet. The agent repeats the request
// until the list agrees with that call, or until agreeWithin has passed.
const (
	agreeWithin = 5 * time.Second
	agreeEvery  = 200 * time.Millisecond
	maxPages    = 10000
)

// controllerStep connects a volume to this host through the controller of its plugin, or
// disconnects it.
type controllerStep struct{ step }

// checked returns the outcome of a ControllerPublishVolume or ControllerUnpublishVolume that
// succeeded. It first compares the result with the plugin's list of published nodes. It compares
// them only if an earlier call may still take effect, and if the plugin has the capability
// LIST_VOLUMES_PUBLISHED_NODES.
func (s controllerStep) checked(p call.Caller, out volume.Outcome, attached bool) volume.Outcome {
	late := slices.ContainsFunc(s.r.Node.Watches, func(w volume.Watch) bool { return w.Attachment })
	if caps := s.view.Info.Caps; !late || !caps.PublishedNodes || !caps.Get && !caps.List {
		return out
	}

	for end := time.Now().Add(agreeWithin); ; {
		nodes, err := s.publishedNodes(p)
		if err != nil {
			out.Warning = fmt.Sprintf("cannot check on which nodes the volume is published: %v", err)
			return out
		}
		if slices.Contains(nodes, s.a.NodeID) == attached {
			return out
		}
		if time.Now().After(end) {
			return s.unverified("the plugin answered OK, but lists the volume as published on %q; this node is %q", nodes, s.a.NodeID)
		}
		select {
		case <-time.After(agreeEvery):
		case <-s.ctx.Done():
			return s.unverified("the plugin answered OK, but whether the volume is published on this node was not seen: %v", s.ctx.Err())
		}
	}
}

// publishedNodes returns the nodes on which the plugin has published the volume. If the plugin does
// not list the volume, the result is empty.
func (s controllerStep) publishedNodes(p call.Caller) ([]string, error) {
	id := s.r.Volume.ExternalID
	if s.view.Info.Caps.Get {
		v, err := call.Do(s.ctx, p, call.GetVolumeRequest{ExternalID: id})
		return v.PublishedNodes, err
	}

	token := ""
	for range maxPages {
		page, err := call.Do(s.ctx, p, call.ListVolumesRequest{Token: token})
		if err != nil {
			return nil, err
		}
		for _, v := range page.Entries {
			if v.ExternalID == id {
				return v.PublishedNodes, nil
			}
		}
		if page.Next == "" || page.Next == token {
			return nil, nil
		}
		token = page.Next
	}

	return nil, fmt.Errorf("the list of volumes has more than %d pages", maxPages)
}
