package volume_test

import (
	"testing"

	"github.com/volagent/volagent/volmgr/volume"
)

// TestUrgency checks which changes the agent saves at once. These are changes that users see, and
// changes that the next agent could not discover on the host.
func TestUrgency(t *testing.T) {
	one, two := &volume.MountIdentity{ID: 1}, &volume.MountIdentity{ID: 2}
	with := func(state volume.ClaimState, mount, bound *volume.MountIdentity) volume.Record {
		r := stored("data", "p")
		r.Node.Staged = volume.Present
		r.Claims = map[string]volume.Claim{"a": {Alloc: "a", Wanted: true, State: state, Published: volume.Present, Mount: mount, BoundMount: bound}}
		return r
	}
	staged := with(volume.Pending, nil, nil)
	staged.Node.Mount = two
	for _, tt := range []struct {
		name        string
		before, now volume.Record
		want        volume.Saving
	}{
		{"nothing new", with(volume.Mounted, one, one), with(volume.Mounted, one, one), volume.SaveWithNext},
		{"staged on the way", with(volume.Pending, nil, nil), staged, volume.SaveWithNext},
		{"taken", with(volume.Pending, nil, nil), with(volume.Mounted, one, nil), volume.SaveAtOnce},
		{"taken claim mounted anew", with(volume.Mounted, nil, nil), with(volume.Mounted, two, nil), volume.SaveAtOnce},
		{"taken claim bound anew", with(volume.Mounted, one, nil), with(volume.Mounted, one, two), volume.SaveAtOnce},
		{"gone", with(volume.Mounted, one, nil), stored("data", "p"), volume.SaveAtOnce},
	} {
		if got := volume.Urgency(tt.before, tt.now); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}
