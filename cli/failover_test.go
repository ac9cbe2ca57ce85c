package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
)

// failoverRun is like unitRun, but its volumes are shared. The volume "own" belongs to the host alone.
func failoverRun(t *testing.T) (r *run, root string, calls *[]string) {
	t.Helper()
	f := &fake{volumes: []api.Volume{{Spec: api.VolumeSpec{ID: "own"}, Scope: api.ScopeHost}}}
	for _, id := range []string{"db", `d b%x$y"`, "db[3]"} {
		f.volumes = append(f.volumes, api.Volume{Spec: api.VolumeSpec{ID: id}, Scope: api.ScopeShared})
	}
	r, root, calls = unitRun(t)
	r.socket = with(t, f).socket
	return r, root, calls
}

// TestFailoverUnits checks that systemd accepts the units for failover without a warning. An id or an
// option must not be mistaken for a variable, a specifier or another argument.
func TestFailoverUnits(t *testing.T) {
	r, _, calls := failoverRun(t)
	const dir = "/etc/systemd/system/"
	for _, tt := range []struct {
		args []string
		has  map[string][]string
	}{
		{[]string{"db", "/srv/db", "--for", "web.service"}, map[string][]string{
			dir + "failover-web.service": {
				"\nType=notify\n", "\nExecStart=/usr/bin/volctl failover run web.service db /srv/db\n", "\nRestart=always\nRestartSec=2s\n",
				"\nStartLimitIntervalSec=0\n", "\nWants=volagent.service\nAfter=volagent.service\n", "\nWantedBy=multi-user.target\n",
			},
			dir + "web.service.d/failover.conf": {"[Unit]\nBindsTo=failover-web.service\nAfter=failover-web.service\nAssertPathIsMountPoint=/srv/db\n"},
		}},
		{[]string{`d b%x$y"`, "/srv/my data%1", "--for", "web@1.service", "--prefer", "h1,h2", "--delay", "2s", "-o", "ro,timeout=5m", "-o", "mount_flag=a b"}, map[string][]string{
			dir + "failover-web@1.service": {
				`ExecStart=/usr/bin/volctl failover run web@1.service "d b%%x$$y\"" "/srv/my data%%1" --prefer h1,h2 --delay 2s --options ro,timeout=5m --options "mount_flag=a b"` + "\n",
			},
			dir + "web@1.service.d/failover.conf": {"\nBindsTo=failover-web@1.service\n", "\nAssertPathIsMountPoint=/srv/my data%%1\n"},
		}},
		{[]string{"db", "/srv/db", "--for", "web.service", "--docker", "-o", "per_alloc=3"}, map[string][]string{
			dir + "failover-web.service":        {"failover run web.service db[3] /srv/db --options per_alloc=3\n"},
			dir + "web.service.d/failover.conf": {"BindsTo=failover-web.service\n"},
			dir + "web.service":                 {"\nExecStart=/usr/bin/volctl failover containers db[3]\nExecStopPost=/usr/bin/volctl failover containers --stop db[3]\n", "\nAfter=docker.service\n"},
		}},
	} {
		got := r.volctl(append([]string{"systemd", "generate", "--failover"}, tt.args...)...)
		all := files(t, got.stdout)
		if got.code != exitDone || got.stderr != "" || len(all) != len(tt.has) || len(*calls) != 0 {
			t.Errorf("%q: exit %d, %q, systemctl %q\n%s", tt.args, got.code, got.stderr, *calls, got.stdout)
		}
		for path, texts := range tt.has {
			for _, text := range texts {
				if !strings.Contains(all[path], text) {
					t.Errorf("%q: %s does not contain %q:\n%s", tt.args, path, text, got.stdout)
				}
			}
		}
		for path, text := range all { // the program may not be installed on this host
			all[path] = strings.ReplaceAll(text, "=/usr/bin/volctl ", "=/bin/sh ")
		}
		verify(t, all)
	}
}

// TestFailoverUnitsBad checks that volctl refuses flags and values that cannot work.
func TestFailoverUnitsBad(t *testing.T) {
	r, root, calls := failoverRun(t)
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"none", "/srv/db", "--for", "web.service"}, exitNotFound, "no such volume"},
		{[]string{"own", "/srv/db", "--for", "web.service"}, exitRefused, "volctl volume share own"},
		{[]string{"db", "/srv/db"}, exitUsage, "--failover needs --for"},
		{[]string{"db", "/srv/db", "--for", "web.socket"}, exitUsage, "--failover needs --for"},
		{[]string{"db", "/srv/db", "--for", "web.service", "--automount"}, exitUsage, "exclude each other"},
		{[]string{"db", "/srv/db", "--for", "web.service", "-o", "alloc=x"}, exitUsage, "the alloc is the service"},
		{[]string{"db", "/srv/db", "--for", "web.service", "--prefer", "h1,h1"}, exitUsage, "each once"},
		{[]string{"db", "/srv/db", "--for", "web.service", "--prefer", "h1 --x"}, exitUsage, "is not possible"},
		{[]string{"db", "/srv/db", "--for", "web.service", "--delay", "2h"}, exitUsage, "--delay must be between 0 and 1m0s"},
		{[]string{"db", "/srv/a\nExecStart=/bin/sh", "--for", "web.service"}, exitUsage, "has a control character"},
		{[]string{"db", "/srv/db", "--for", strings.Repeat("x", 245) + ".service"}, exitUsage, "too long"},
		{[]string{"db", "/srv/db", "--failover=false", "--docker"}, exitUsage, "need --failover"},
	} {
		got := r.volctl(append([]string{"systemd", "generate", "--install", "--failover"}, tt.args...)...)
		if got.code != tt.code || got.stdout != "" || !strings.Contains(got.stderr, tt.says) {
			t.Errorf("%q: exit %d, not %d, says %q, not %q\n%s", tt.args, got.code, tt.code, got.stderr, tt.says, got.stdout)
		}
	}
	if left, err := os.ReadDir(root); err != nil || len(left) != 0 || len(*calls) != 0 {
		t.Errorf("%v, %v, systemctl %q", left, err, *calls)
	}
}

// TestFailoverInstall checks that only the failover unit is enabled.
func TestFailoverInstall(t *testing.T) {
	r, root, calls := failoverRun(t)
	got := r.volctl("systemd", "generate", "db", "/srv/db", "--failover", "--for", "web.service", "--install")
	expect(t, got, 0, `wrote /etc/systemd/system/failover-web.service
wrote /etc/systemd/system/web.service.d/failover.conf
enabled failover-web.service; to start it now: systemctl start failover-web.service
it alone starts web.service at boot: systemctl disable --now web.service
`, "")
	if did := strings.Join(*calls, "; "); did != "daemon-reload; enable --quiet -- failover-web.service" {
		t.Errorf("systemctl %s", did)
	}
	if _, err := os.Stat(filepath.Join(root, "etc/systemd/system/failover-web.service")); err != nil {
		t.Error(err)
	}
}

// TestFailoverSwitch checks the maintenance switch, which works without an agent.
func TestFailoverSwitch(t *testing.T) {
	r, root, _ := unitRun(t)
	r.socket += "x"
	paused := filepath.Join(root, "var/lib/volagent-failover/web.service.paused")
	expect(t, r.volctl("failover", "pause", "web.service"), 0, "web.service is kept off this host; to undo it: volctl failover resume web.service\n", "")
	expect(t, r.volctl("failover", "pause", "web.service", "-q"), 0, "", "")
	if raw, err := os.ReadFile(paused); err != nil || string(raw) != "since 2026-03-10T03:12:11Z\n" {
		t.Errorf("%q, %v", raw, err)
	}
	expect(t, r.volctl("failover", "resume", "web.service"), 0, "this host can run web.service again\n", "")
	expect(t, r.volctl("failover", "resume", "web.service", "-q"), 0, "", "")
	if _, err := os.Stat(paused); !os.IsNotExist(err) {
		t.Errorf("the switch is still on: %v", err)
	}
	for _, bad := range []string{"web", "../../etc/passwd", "a/b.service", "web.socket", "a\nb.service"} {
		for _, verb := range []string{"pause", "resume"} {
			if got := r.volctl("failover", verb, bad); got.code != exitUsage || !strings.Contains(got.stderr, "is not the name of a service") {
				t.Errorf("%s %q: %+v", verb, bad, got)
			}
		}
	}
}
