package unit

import (
	"errors"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/systemd"
)

func TestOrdinal(t *testing.T) {
	for n, want := range map[int]string{1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 11: "11th", 12: "12th", 13: "13th", 21: "21st", 102: "102nd", 111: "111th"} {
		if got := ordinal(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// TestNotStarted checks the reasons why a unit does not run. Each reason must contain the fix.
func TestNotStarted(t *testing.T) {
	r := &Runner{name: "csi.service"}
	service := func(change func(*systemd.Service)) systemd.Service {
		var s systemd.Service
		change(&s)
		return s
	}
	for _, tt := range []struct {
		name string
		s    systemd.Service
		job  startJob
		want string
	}{
		{"no answer", systemd.Service{}, startJob{err: errors.New("no answer")}, "no answer"},
		{"limit", service(func(s *systemd.Service) { s.Result = "start-limit-hit" }), startJob{}, "systemctl reset-failed csi.service"},
		{"refused by systemd", service(func(s *systemd.Service) { s.Active, s.Invocation = "failed", "1" }), startJob{result: "failed", before: "1"}, "start-limit-hit"},
		{"exited", service(func(s *systemd.Service) { s.ExecCode, s.ExecStatus, s.Result = 1, 3, "exit-code" }), startJob{result: "done"}, "its process exited with status 3"},
		{"oneshot", service(func(s *systemd.Service) { s.Type, s.Result = "oneshot", "success" }), startJob{result: systemd.JobDone}, "no main process"},
		{"other", service(func(s *systemd.Service) { s.Result = "resources" }), startJob{result: "failed"}, "job failed, result resources"},
	} {
		if err := r.notStarted(tt.s, &tt.job); !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}
