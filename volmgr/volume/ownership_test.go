package volume_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestAdmitOwnership checks that the plugin sets the group if it has the capability to do so. All
// claims of the volume then share this group.
func TestAdmitOwnership(t *testing.T) {
	grouped := plugin.Info{Caps: plugin.Caps{MountGroup: true}}
	asking := func(alloc string, own volume.Ownership) volume.Request {
		q := writer(alloc)
		q.Own = own
		return q
	}
	group := volume.Ownership{UID: "5", GID: "7"}
	r, err := volume.Admit(offering(call.SingleNodeMultiWriter), asking("a", group), grouped, now)
	if err != nil {
		t.Fatal(err)
	}
	if c := r.Claims["a"]; r.Node.Mode.Group != "7" || !c.Own.ByPlugin || c.Own.Here() != (volume.Ownership{UID: "5", ByPlugin: true}) {
		t.Errorf("group %q, claim %+v", r.Node.Mode.Group, c.Own)
	}
	if again, err := volume.Admit(r, asking("a", group), grouped, now); err != nil || len(again.Claims) != 1 {
		t.Errorf("the same again: %v", err)
	}
	for name, tt := range map[string]struct {
		info plugin.Info
		ask  volume.Request
		want string
	}{
		"another group":           {grouped, asking("b", volume.Ownership{GID: "8"}), "mounted for the group of its first claim (gid 7)"},
		"the same claim, another": {grouped, asking("a", volume.Ownership{GID: "7"}), "another uid, gid or mode"},
		"a reader's group":        {grouped, func() volume.Request { q := asking("b", volume.Ownership{GID: "7"}); q.ReadOnly = true; return q }(), ""},
		"a reader's uid": {grouped, func() volume.Request {
			q := asking("b", volume.Ownership{UID: "1", GID: "7"})
			q.ReadOnly = true
			return q
		}(), "only reads cannot change who owns volume \"data\" (uid 1)"},
		"none":                 {grouped, asking("b", volume.Ownership{}), ""},
		"a plugin that cannot": {plugin.Info{}, asking("b", volume.Ownership{GID: "8"}), ""},
	} {
		next, err := volume.Admit(r, tt.ask, tt.info, now)
		switch {
		case tt.want == "" && (err != nil || len(next.Claims) != 2):
			t.Errorf("%s: %v", name, err)
		case tt.want != "" && (!errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, not %q", name, err, tt.want)
		}
	}
	if r = admit(t, offering(call.SingleNodeMultiWriter), asking("a", group)); r.Node.Mode.Group != "" || r.Claims["a"].Own != group {
		t.Errorf("a plugin that cannot: group %q, claim %+v", r.Node.Mode.Group, r.Claims["a"].Own)
	}
}

func TestOwnershipCheck(t *testing.T) {
	for _, good := range []volume.Ownership{{}, {UID: "0"}, {GID: "4294967294"}, {Mode: "7777"}, {Mode: "0", Recursive: true}} {
		if err := good.Check(); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
	for _, bad := range []volume.Ownership{{UID: "-1"}, {UID: "x"}, {GID: "4294967295"}, {Mode: "8"}, {Mode: "10000"}, {Recursive: true}, {Default: true}, {UID: "1", GID: "1", Recursive: true, Default: true}} {
		if err := bad.Check(); !errors.Is(err, volume.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestDefaultOwner checks that a requested owner replaces the default owner, and that a plugin
// never receives the default owner. If the default changes, this must not count as a change of the
// volume's options.
func TestDefaultOwner(t *testing.T) {
	none, mode, user := volume.Ownership{}, volume.Ownership{Mode: "0770"}, volume.Ownership{UID: "5"}
	root := volume.Ownership{UID: "7", GID: "8", Default: true}
	if got := none.WithDefault("7", "8"); got != root || got.Explicit() != none || !got.Asked() {
		t.Errorf("where nothing was asked for: %+v", got)
	}
	if got := mode.WithDefault("7", "8"); got.UID != "7" || got.Mode != "0770" || got.Explicit() != mode {
		t.Errorf("where a mode was asked for: %+v", got)
	}
	if got := user.WithDefault("7", "8"); got != user || got.Explicit() != user {
		t.Errorf("where a user was asked for: %+v", got)
	}

	grouped := plugin.Info{Caps: plugin.Caps{MountGroup: true}}
	q := writer("a")
	q.Own = root
	r, err := volume.Admit(offering(call.SingleNodeMultiWriter), q, grouped, now)
	if err != nil {
		t.Fatal(err)
	}
	if c := r.Claims["a"]; r.Node.Mode.Group != "" || c.Own != root || c.Own.Here() != root {
		t.Errorf("group %q, claim %+v", r.Node.Mode.Group, c.Own)
	}
	for _, own := range []volume.Ownership{root, none, none.WithDefault("9", "9")} {
		q.Own = own
		if _, err := volume.Admit(r, q, grouped, now); err != nil {
			t.Errorf("the same again with %+v: %v", own, err)
		}
	}
	q.Own = volume.Ownership{UID: "7", GID: "8"}
	if _, err := volume.Admit(r, q, grouped, now); !errors.Is(err, volume.ErrRefused) {
		t.Errorf("the same again with an owner that is asked for: %v", err)
	}
	q.Own = root
	q.Alloc = "b"
	if _, err := volume.Admit(r, q, grouped, now); err != nil {
		t.Errorf("another claim: %v", err)
	}

	had := volume.RuntimeVolume{Runtime: plugin.RuntimeDocker, Name: "d", VolumeID: "d", Own: root}
	if err := had.Check(); err != nil {
		t.Error(err)
	}
	wants := func(own volume.Ownership, differ ...string) {
		t.Helper()
		other := had
		other.Own = own
		if got, back := had.Differs(other), other.Differs(had); !slices.Equal(got, differ) || !slices.Equal(back, differ) {
			t.Errorf("%+v differs in %q, and back in %q; want %q", own, got, back, differ)
		}
	}
	wants(none)
	wants(none.WithDefault("100000", "100000"))
	wants(volume.Ownership{UID: "7", GID: "8"}, "gid", "uid")
	wants(mode.WithDefault("7", "8"), "mode")

	of := offering(call.SingleNodeWriter).Volume
	if q := had.Request("docker", of); q.ReadOnly || q.Own != root {
		t.Errorf("a writer's claim: %+v", q)
	}
	had.ReadOnly = true
	if q := had.Request("docker", of); !q.ReadOnly || q.Own != none {
		t.Errorf("a reader's claim: %+v", q)
	}
}
