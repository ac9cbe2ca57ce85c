package volume

import (
	"testing"

	"github.com/volagent/volagent/agent/api"
)

func TestOwnerText(t *testing.T) {
	for want, o := range map[string]api.Owner{
		"none":                       {Kind: api.OwnerNone},
		"pid 812 rsync, running":     {Kind: api.OwnerPID, PID: 812, Command: "rsync", State: api.OwnerRunning},
		"pid 812, gone":              {Kind: api.OwnerPID, PID: 812, State: api.OwnerGone},
		"unit, running 812":          {Kind: api.OwnerUnit, Unit: "web.service", PID: 812, Command: "nginx", State: api.OwnerRunning},
		"unit, running":              {Kind: api.OwnerUnit, Unit: "web.service", State: api.OwnerRunning},
		"unit, gone":                 {Kind: api.OwnerUnit, Unit: "web.service", State: api.OwnerGone},
		"unit db.service, unknown":   {Kind: api.OwnerUnit, Unit: "db.service", State: api.OwnerUnknown},
		"unit db.service, running 5": {Kind: api.OwnerUnit, Unit: "db.service", PID: 5, State: api.OwnerRunning},
		"docker, 2 containers":       {Kind: api.OwnerRuntime, Runtime: "docker", References: 2, State: api.OwnerRunning},
		"podman, 1 container":        {Kind: api.OwnerRuntime, Runtime: "podman", References: 1},
		"-":                          {},
	} {
		if got := ownerText(&api.Claim{Alloc: "web.service", Owner: o}); got != want {
			t.Errorf("%+v: %q, want %q", o, got, want)
		}
	}
}
