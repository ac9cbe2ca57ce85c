package volume_test

import (
	"testing"

	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestApart checks a plugin whose node part and controllers are separate. A step must wait only for
// the part that it calls. The reason for the wait must name that part.
func TestApart(t *testing.T) {
	const nodeLack, controllerLack = "the node part is down", "no controller is ready"
	parts := func(node, controller plugin.Service) plugin.View {
		v := view()
		node.Lack, controller.Lack = nodeLack, controllerLack
		v.Ready, v.Apart = node.Ready && controller.Ready, &plugin.Apart{Node: node, Controller: controller}
		return v
	}
	up, down, unasked := plugin.Service{Ready: true}, plugin.Service{}, plugin.Service{Unasked: true}
	nodeUp, controllerUp := parts(up, down), parts(down, up)
	claimed := func(r *volume.Record, o *volume.Observed) { // a claim without any side
		edit(r, func(c *volume.Claim) { c.State, c.Published, c.Mount = volume.Pending, volume.Absent, nil })
		r.Node.Attached, r.Node.Staged, r.Node.Mount = volume.Absent, volume.Absent, nil
		o.Targets, o.Staging = nil, volume.Sight{}
	}
	attached := func(r *volume.Record, o *volume.Observed) {
		claimed(r, o)
		r.Node.Attached = volume.Present
	}
	released := func(r *volume.Record, _ *volume.Observed) { *r = must(volume.Detach(*r, "a")) }
	unmounted := func(r *volume.Record, o *volume.Observed) { // a detached claim after a proof of unmount
		released(r, o)
		edit(r, func(c *volume.Claim) { c.Published, c.Mount, c.State = volume.Absent, nil, volume.NodeDetached })
		r.Node.Staged, r.Node.Mount, r.Node.Proven = volume.Absent, nil, true
	}
	owing := func(of func(*volume.Record, *volume.Observed)) func(*volume.Record, *volume.Observed) {
		return func(r *volume.Record, o *volume.Observed) {
			of(r, o)
			*r = volume.LeftoverOf(*r)
			r.Node.Watches, r.Node.Proven = nil, true
		}
	}
	for _, tt := range []struct {
		name    string
		plugin  plugin.View
		change  func(*volume.Record, *volume.Observed)
		want    string
		summary string
	}{
		{"mounted, no controller", nodeUp, nil, "settled", "mounted, writable, no controller available"},
		{"mounted, no node", controllerUp, nil, "settled", "mounted, writable, plugin unavailable"},
		{"claimed, no controller", nodeUp, claimed, "wait plugin: " + controllerLack, "mounting, plugin unavailable"},
		{"claimed, no node", controllerUp, claimed, "ControllerPublishVolume  ", "mounting, plugin unavailable"},
		{"claimed, nobody knows whether it attaches", parts(up, unasked), func(r *volume.Record, o *volume.Observed) {
			claimed(r, o)
			r.Node.Uses, o.Plugin.Info.Caps.Attach = volume.Uses{}, false
		}, "wait plugin: " + controllerLack, "mounting, plugin unavailable"},
		{"attached, no controller", nodeUp, attached, "NodeStageVolume  /s", "mounting, no controller available"},
		{"attached, no node", controllerUp, attached, "wait plugin: " + nodeLack, "mounting, plugin unavailable"},
		{"released, no controller", nodeUp, released, "NodeUnpublishVolume a /t/a", "detaching, no controller available"},
		{"released, no node", controllerUp, released, "wait plugin: " + nodeLack, "detaching, plugin unavailable"},
		{"unmounted, no controller", nodeUp, unmounted, "wait plugin: " + controllerLack, "detaching, plugin unavailable"},
		{"unmounted, no node", controllerUp, unmounted, "ControllerUnpublishVolume  ", "detaching, plugin unavailable"},
		{"a debt, no node", controllerUp, owing(released), "wait plugin: " + nodeLack, "detaching, plugin unavailable"},
		{"a debt, no controller", nodeUp, owing(released), "NodeUnpublishVolume a /t/a", "detaching, no controller available"},
		{"a debt of an attachment, no node", controllerUp, owing(unmounted), "ControllerUnpublishVolume  ", "detaching, plugin unavailable"},
		{"a debt of an attachment, no controller", nodeUp, owing(unmounted), "wait plugin: " + controllerLack, "detaching, plugin unavailable"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, o := mounted(t), asMounted()
			o.Plugin = tt.plugin
			r.Node.Uses.Attach, r.Node.Attached = true, volume.Present
			if tt.change != nil {
				tt.change(&r, &o)
			}
			if got := words(volume.Next(r, o)); got != tt.want {
				t.Errorf("next is %q, want %q", got, tt.want)
			}
			if e := volume.Explain(r, o, nil); e.Summary != tt.summary {
				t.Errorf("summary %q, want %q", e.Summary, tt.summary)
			}
		})
	}
}
