package service

import (
	"encoding/json"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

func TestStillMounted(t *testing.T) {
	see := func(all ...volume.Seen) map[string]volume.Sight {
		m := map[string]volume.Sight{}
		for i, s := range all {
			m[string(rune('a'+i))] = volume.Sight{Seen: s}
		}
		return m
	}
	mounted := volume.Sight{Seen: volume.SeenMount}
	for _, tt := range []struct {
		name             string
		obs              volume.Observed
		anything, claims string
	}{
		{"nothing", volume.Observed{}, "no", "yes"},
		{"staged only", volume.Observed{Staging: mounted, Targets: see(volume.SeenNothing)}, "yes", "no"},
		{"one of two", volume.Observed{Staging: mounted, Targets: see(volume.SeenMount, volume.SeenNothing)}, "yes", "no"},
		{"dead", volume.Observed{Targets: see(volume.SeenDead)}, "yes", "yes"},
		{"hung", volume.Observed{Targets: see(volume.SeenHung)}, "unknown", "unknown"},
		{"the bind is gone", volume.Observed{Targets: see(volume.SeenMount), Binds: see(volume.SeenNothing)}, "yes", "no"},
		{"one of two is being detached", volume.Observed{Targets: see(volume.SeenMount, volume.SeenMount, volume.SeenNothing)}, "yes", "yes"},
	} {
		r := volume.Record{Claims: map[string]volume.Claim{}}
		for alloc := range tt.obs.Targets {
			c := volume.Claim{Alloc: alloc, Wanted: alloc != "c"}
			if _, bound := tt.obs.Binds[alloc]; bound {
				c.At = "/srv"
			}
			r.Claims[alloc] = c
		}
		if a, c := stillMounted(r, tt.obs, true), stillMounted(r, tt.obs, false); a != tt.anything || c != tt.claims {
			t.Errorf("%s: anything %s, all claims %s", tt.name, a, c)
		}
	}
}

// TestSecretsThereAndBack checks that an answer marks a stored secret as sealed, and that a later
// request may contain the secret in this form.
func TestSecretsThereAndBack(t *testing.T) {
	v := volume.Volume{Secrets: map[string]call.SecretRef{"s": {Sealed: "v1.x.y"}, "l": {Literal: call.NewSecret("hunter2")}, "f": {File: "/f"}}}
	shown := toSpec(v)
	raw, err := json.Marshal(shown.Secrets)
	if want := `{"f":{"file":"/f"},"l":{"sealed":true},"s":{"sealed":true}}`; err != nil || string(raw) != want {
		t.Errorf("shown as %s, %v, want %s", raw, err, want)
	}
	back := Volume(shown).Secrets
	if back["s"] != (call.SecretRef{Keep: true}) || back["f"] != (call.SecretRef{File: "/f"}) {
		t.Errorf("read as %+v", back)
	}
	given := Volume(api.VolumeSpec{Secrets: map[string]api.Secret{"k": {Literal: api.NewLiteral("hunter2")}}}).Secrets["k"]
	if given.Literal.Reveal() != "hunter2" || given.Sealed != "" {
		t.Errorf("a value is read as %+v", given)
	}
}
