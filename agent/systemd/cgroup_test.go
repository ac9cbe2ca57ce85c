package systemd

import (
	"testing"

	"github.com/volagent/volagent/volmgr/proc"
)

func TestServiceCgroup(t *testing.T) {
	for table, want := range map[string]bool{
		"0::/system.slice/volagent.service\n":                                     true,
		"3:cpu:/\n1:name=systemd:/system.slice/volagent.service\n0::/\n":          true,
		"3:cpu:/system.slice/volagent.service\n0::/\n":                            false,
		"0::/user.slice/user-0.slice/session-1.scope\n":                           false,
		"0::/user.slice/user-1000.slice/user@1000.service/app.slice/term.scope\n": false,
		"0::/system.slice/docker-0123.scope\n":                                    false,
		"":                                                                        false,
	} {
		if got := serviceOf(proc.ParseCgroups(table)) != ""; got != want {
			t.Errorf("%q: %t", table, got)
		}
	}
}
