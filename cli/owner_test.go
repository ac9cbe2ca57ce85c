package cli

import (
	"net/http"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
)

// TestClaimOwner checks how volctl chooses the owner of a claim. The flag --owner has priority.
// Without it, the owner is the current invocation of the calling service. Without a service, the
// claim has no owner.
func TestClaimOwner(t *testing.T) {
	const (
		invocation = "0123456789abcdef0123456789abcdef"
		service    = "0::/system.slice/web.service\n"
	)
	for _, tt := range []struct {
		cgroup, invocation string
		args               []string
		alloc, owner       string
	}{
		{service, invocation, nil, "web.service", `{"kind":"unit","unit":"web.service","invocation":"` + invocation + `"}`},
		{service, invocation, []string{"--alloc", "x"}, "x", `{"kind":"unit","unit":"web.service","invocation":"` + invocation + `"}`},
		{service, "", nil, "web.service", ""},
		{"0::/user.slice/session-2.scope\n", invocation, nil, "manual", ""},
		{"0::/user.slice/user-0.slice/user@0.service/app.slice/app.service\n", invocation, nil, "app.service", ""},
		{service, invocation, []string{"--owner", "none"}, "web.service", `{"kind":"none"}`},
		{service, invocation, []string{"-owner=pid:812"}, "web.service", `{"kind":"pid","pid":812}`},
		{"", "", []string{"--owner", "unit:db"}, "manual", `{"kind":"unit","unit":"db.service"}`},
		{"", "", []string{"--owner", "unit:a@b.scope"}, "manual", `{"kind":"unit","unit":"a@b.scope"}`},
	} {
		f := world()
		f.on["PUT /v1/volumes/data/claims/"+tt.alloc] = func(*http.Request) (any, error) {
			return api.Claim{State: api.ClaimMounted, Path: "/srv"}, nil
		}
		r := with(t, f)
		r.cgroup, r.env = tt.cgroup, map[string]string{"INVOCATION_ID": tt.invocation}
		got := r.volctl(append([]string{"volume", "claim", "data", "--no-wait"}, tt.args...)...)
		if got.code != 0 {
			t.Errorf("%+v: %+v", tt, got)
		}
		body := "{}"
		if tt.owner != "" {
			body = `{"owner":` + tt.owner + "}"
		}
		expectSent(t, f, "PUT /v1/volumes/data/claims/"+tt.alloc+" "+body)
	}
	for _, bad := range []string{"", "pid", "pid:", "pid:x", "pid:0", "pid:-1", "unit", "unit:", "host:web", "none:x"} {
		f := world()
		if got := with(t, f).volctl("volume", "claim", "data", "--owner", bad); got.code != 2 || !strings.Contains(got.stderr, "--owner") {
			t.Errorf("--owner %q: %+v", bad, got)
		}
		expectSent(t, f)
	}
}
