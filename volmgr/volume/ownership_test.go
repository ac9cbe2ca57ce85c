package volume_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/volume"
)

// TestAdmitOwnership: the group goes by the plugin where that can, and is then that of
// all claims.
func TestAdmitOwnership(t *testing.T) {
	grouped := volume.PluginInfo{Caps: volume.Caps{MountGroup: true}}
	asking := func(alloc string, own volume.Ownership) volume.Request {
		q := writer(alloc)
		q.Own = own
		return q
	}
	group := volume.Ownership{UID: "5", GID: "7"}
	r, err := volume.Admit(offering(volume.SingleNodeMultiWriter), asking("a", group), grouped, now)
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
		info volume.PluginInfo
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
		"a plugin that cannot": {volume.PluginInfo{}, asking("b", volume.Ownership{GID: "8"}), ""},
	} {
		next, err := volume.Admit(r, tt.ask, tt.info, now)
		switch {
		case tt.want == "" && (err != nil || len(next.Claims) != 2):
			t.Errorf("%s: %v", name, err)
		case tt.want != "" && (!errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, not %q", name, err, tt.want)
		}
	}
	if r = admit(t, offering(volume.SingleNodeMultiWriter), asking("a", group)); r.Node.Mode.Group != "" || r.Claims["a"].Own != group {
		t.Errorf("a plugin that cannot: group %q, claim %+v", r.Node.Mode.Group, r.Claims["a"].Own)
	}
}

func TestOwnershipCheck(t *testing.T) {
	for _, good := range []volume.Ownership{{}, {UID: "0"}, {GID: "4294967294"}, {Mode: "7777"}, {Mode: "0", Recursive: true}} {
		if err := good.Check(); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
	for _, bad := range []volume.Ownership{{UID: "-1"}, {UID: "x"}, {GID: "4294967295"}, {Mode: "8"}, {Mode: "10000"}, {Recursive: true}} {
		if err := bad.Check(); !errors.Is(err, volume.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
