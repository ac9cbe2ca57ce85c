package part

import (
	"testing"

	"github.com/volagent/volagent/volmgr/plugin"
)

// TestFence checks that the view of a plugin has the strictest fence of the files of its parts.
func TestFence(t *testing.T) {
	files := func(fences ...plugin.Fence) (all Whole) {
		for i, fence := range fences {
			g := &Glance{ID: "p"}
			g.Definition = &plugin.Definition{ID: "p", Type: []string{Node, Controller}[min(i, 1)], Fence: fence}
			g.Look(true, false)
			all = append(all, g)
		}
		return all
	}
	if got := files(plugin.FenceHook)[0].View.Fence; got != plugin.FenceHook {
		t.Errorf("one part: %q", got)
	}

	for _, tt := range []struct {
		files Whole
		want  plugin.Fence
	}{
		{files(plugin.FenceNone, plugin.FenceNone), plugin.FenceNone},
		{files(plugin.FenceDetach, plugin.FenceNone), plugin.FenceDetach},
		{files(plugin.FenceNone, plugin.FenceDetach), plugin.FenceDetach},
		{files(plugin.FenceDetach, plugin.FenceDetachWhenOff), plugin.FenceDetachWhenOff},
		{files(plugin.FenceHook, plugin.FenceDetach), plugin.FenceHook},
	} {
		if got := tt.files.View("p", "d").Fence; got != tt.want {
			t.Errorf("%q and %q: %q", tt.files[0].View.Fence, tt.files[1].View.Fence, got)
		}
	}
}
