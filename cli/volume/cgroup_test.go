package volume

import "testing"

func TestServiceFromCgroup(t *testing.T) {
	for content, want := range map[string]string{
		"0::/system.slice/postgres.service\n":                                                    "postgres.service",
		"0::/system.slice/system-web.slice/web@1.service\n":                                      "web@1.service",
		"0::/system.slice/web.service/payload\n":                                                 "web.service",
		"0::/user.slice/user-1000.slice/session-2.scope\n":                                       "",
		"0::/user.slice/user-0.slice/user@0.service/app.slice/app.service\n":                     "app.service",
		"0::/user.slice/user-0.slice/user@0.service/app.slice/vte-spawn.scope\n":                 "",
		"0::/user.slice/user-0.slice/user@0.service/init.scope\n":                                "",
		"0::/user.slice/user-0.slice/user@0.service\n":                                           "",
		"0::/system.slice/docker-abc.scope\n":                                                    "",
		"12:pids:/x\n1:name=systemd:/system.slice/old.service\n0::/system.slice/other.service\n": "old.service",
		"4:memory:/system.slice/x.service\n":                                                     "",
		"0::/\n":                                                                                 "",
		"0::/.service\n":                                                                         "",
		"":                                                                                       "",
		"rubbish":                                                                                "",
	} {
		if got := serviceFromCgroup(content); got != want {
			t.Errorf("%q: got %q, want %q", content, got, want)
		}
	}
}
