package apiserver

import (
	"testing"

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
	} {
		if a, c := stillMounted(tt.obs, true), stillMounted(tt.obs, false); a != tt.anything || c != tt.claims {
			t.Errorf("%s: anything %s, all claims %s", tt.name, a, c)
		}
	}
}
