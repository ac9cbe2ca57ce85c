package control

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/etcd/wire"
)

// TestCertProblem checks the advice about a certificate. A member renews its own one, and only a client
// must join again.
func TestCertProblem(t *testing.T) {
	const life = 90 * 24 * time.Hour
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		role      wire.Role
		left      time.Duration
		text, fix string
	}{
		{wire.RoleMember, life, "", ""},
		{wire.RoleMember, -time.Hour, "ended 60 min ago", "systemctl restart volagent-etcd"},
		{wire.RoleWitness, -time.Hour, "ended 60 min ago", "systemctl restart volagent-etcd"},
		{wire.RoleClient, -time.Hour, "ended 60 min ago", "volctl cluster join, with a new token"},
		{wire.RoleClient, 24 * time.Hour, "could not be renewed", "journalctl -u volagent-etcd"},
	} {
		var text, fix string
		add := func(f, format string, args ...any) { text, fix = fmt.Sprintf(format, args...), f }
		certProblem(now, life, add, wire.HostStatus{Name: "h", Role: tt.role, CertEnd: now.Add(tt.left)})
		if !strings.Contains(text, tt.text) || !strings.Contains(fix, tt.fix) || (text == "") != (tt.text == "") {
			t.Errorf("%s with %s left: %q, fix %q", tt.role, tt.left, text, fix)
		}
	}
}
