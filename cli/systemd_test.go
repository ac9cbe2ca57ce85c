package cli

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cli/mount"
)

// unitRun returns a run with a fake agent that has the given volumes. volctl writes unit files
// below the directory root. The list calls receives the arguments of each call of systemctl.
func unitRun(t *testing.T, volumes ...string) (r *run, root string, calls *[]string) {
	t.Helper()
	f := &fake{}
	for _, id := range volumes {
		f.volumes = append(f.volumes, api.Volume{Spec: api.VolumeSpec{ID: id}})
	}
	r, root, calls = with(t, f), t.TempDir(), new([]string)
	r.host = mount.Host{Root: root, Systemctl: func(_ context.Context, args ...string) error {
		*calls = append(*calls, strings.Join(args, " "))
		return nil
	}}
	return r, root, calls
}

// files splits the printed units. The keys of the result are paths.
func files(t *testing.T, printed string) map[string]string {
	t.Helper()
	all, path := map[string]string{}, ""
	for line := range strings.Lines(printed) {
		if rest, ok := strings.CutPrefix(line, "# /etc/"); ok {
			path = "/etc/" + strings.TrimSpace(rest)
			continue
		}
		if path == "" {
			t.Fatalf("a line of no file: %q", line)
		}
		all[path] += line
	}
	return all
}

// TestSystemdGenerate checks that systemd accepts the generated units without a warning, even if
// they contain unusual names.
func TestSystemdGenerate(t *testing.T) {
	r, _, calls := unitRun(t, "data", "da ta%x", "data[3]")
	for _, tt := range []struct {
		args []string
		has  map[string][]string
	}{
		{[]string{"data", "/srv/data"}, map[string][]string{
			"/etc/systemd/system/srv-data.mount": {
				"# In /etc/fstab it would be: data /srv/data csi _netdev,nofail 0 0\n", "\nWants=volagent.service\nAfter=volagent.service\n",
				"\nBefore=remote-fs.target\n", "\nWhat=data\nWhere=/srv/data\nType=csi\nOptions=_netdev,nofail\nTimeoutSec=90\n", "\nWantedBy=remote-fs.target\n",
			},
		}},
		{[]string{"da ta%x", `/srv/my data%1/a-b"\c`, "--for", "web@1.service", "-o", "_netdev,ro,uid=0", "-o", "timeout=5m"}, map[string][]string{
			`/etc/systemd/system/srv-my\x20data\x251-a\x2db\x22\x5cc.mount`: {
				`da\040ta%x /srv/my\040data%1/a-b"\134c csi _netdev,nofail,ro,uid=0,timeout=5m,x-systemd.mount-timeout=310s 0 0`,
				"\nWhat=da ta%%x\nWhere=/srv/my data%%1/a-b\"\\c\n", "\nOptions=_netdev,nofail,ro,uid=0,timeout=5m\nTimeoutSec=310\n",
			},
			`/etc/systemd/system/web@1.service.d/srv-my\x20data\x251-a\x2db\x22\x5cc.mount.conf`: {`RequiresMountsFor="/srv/my data%%1/a-b\"\\c"`},
		}},
		{[]string{"data", "/srv/data/", "--automount", "-o", "per_alloc=3"}, map[string][]string{
			"/etc/systemd/system/srv-data.mount":     {"csi _netdev,nofail,per_alloc=3,x-systemd.automount 0 0\n", "What=data\n"},
			"/etc/systemd/system/srv-data.automount": {"[Automount]\nWhere=/srv/data\n", "WantedBy=remote-fs.target\n"},
		}},
	} {
		got := r.volctl(append([]string{"systemd", "generate"}, tt.args...)...)
		all := files(t, got.stdout)
		if got.code != exitDone || got.stderr != "" || len(all) != len(tt.has) || len(*calls) != 0 {
			t.Errorf("%q: exit %d, %q, systemctl %q\n%s", tt.args, got.code, got.stderr, *calls, got.stdout)
		}
		for path, texts := range tt.has {
			for _, text := range texts {
				if !strings.Contains(all[path], text) {
					t.Errorf("%q: in %s there is no %q:\n%s", tt.args, path, text, got.stdout)
				}
			}
		}
		if auto := all["/etc/systemd/system/srv-data.automount"] != ""; auto == strings.Contains(all["/etc/systemd/system/srv-data.mount"], "[Install]") && all["/etc/systemd/system/srv-data.mount"] != "" {
			t.Errorf("%q: the mount is enabled and the automount, or neither:\n%s", tt.args, got.stdout)
		}
		verify(t, all)
	}
}

// verify runs systemd's own check on the units, and on the units to which they refer.
func verify(t *testing.T, files map[string]string) {
	t.Helper()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Log("systemd-analyze is not there; scripts/setup test installs it")
		return
	}
	dir := t.TempDir()
	files["/etc/systemd/system/volagent.service"] = "[Service]\nExecStart=/bin/sh\n"
	for path := range files {
		if consumer, _, ok := strings.Cut(path, ".d/"); ok && files[consumer] == "" {
			files[consumer] = "[Service]\nExecStart=/bin/sh\n"
		}
	}
	args := []string{"verify", "--man=no"}
	for path, text := range files {
		path = filepath.Join(dir, strings.TrimPrefix(path, "/etc/systemd/system"))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(path) != ".conf" {
			args = append(args, path)
		}
	}
	cmd := exec.Command("systemd-analyze", args...)
	cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":")
	if out, err := cmd.CombinedOutput(); err != nil || len(out) != 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// TestSystemdGenerateBad checks that volctl refuses values that a unit file cannot contain. The
// error must give the reason.
func TestSystemdGenerateBad(t *testing.T) {
	r, root, calls := unitRun(t, "data")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	long := "/" + strings.Repeat("x", 250)
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"none", "/srv/data"}, exitNotFound, "no such volume"},
		{[]string{"data", "srv/data"}, exitUsage, "not an absolute path"},
		{[]string{"data", "/"}, exitUsage, "systemd mounts nothing else at /"},
		{[]string{"data", "/proc/x"}, exitUsage, "systemd mounts nothing else at /proc/x"},
		{[]string{"data", "/srv/a\nb"}, exitUsage, "has a control character"},
		{[]string{"data", "/srv/a "}, exitUsage, "begins or ends with a space"},
		{[]string{"data", `/srv/a\`}, exitUsage, "ends with a backslash"},
		{[]string{" data", "/srv/a"}, exitUsage, "space"},
		{[]string{"data", link}, exitUsage, "symbolic link"},
		{[]string{"data", long}, exitUsage, "allows 255"},
		{[]string{"data", "/srv/data", "-o", "acess_mode=x"}, exitUsage, "access_mode"},
		{[]string{"data", "/srv/data", "--for", "web"}, exitUsage, "web.service"},
		{[]string{"data", "/srv/data", "--for", "../x.service"}, exitUsage, "not the name of a unit"},
		{[]string{"data", "/srv/data", "--for", ".service"}, exitUsage, "not the name of a unit"},
	} {
		got := r.volctl(append([]string{"systemd", "generate", "--install"}, tt.args...)...)
		if got.code != tt.code || got.stdout != "" || !strings.Contains(got.stderr, tt.says) {
			t.Errorf("%q: exit %d, not %d, says %q, not %q\n%s", tt.args, got.code, tt.code, got.stderr, tt.says, got.stdout)
		}
	}
	if left, err := os.ReadDir(root); err != nil || len(left) != 0 || len(*calls) != 0 {
		t.Errorf("%v, %v, systemctl %q", left, err, *calls)
	}
}

// TestSystemdInstall checks that a second installation writes no files. It must replace a file with
// other contents only with --force.
func TestSystemdInstall(t *testing.T) {
	r, root, calls := unitRun(t, "data")
	generate := func(more ...string) result {
		return r.volctl(append([]string{"systemd", "generate", "data", "/srv/data", "--for", "web.service", "--install"}, more...)...)
	}
	mount := filepath.Join(root, "etc/systemd/system/srv-data.mount")
	dropIn := filepath.Join(root, "etc/systemd/system/web.service.d/srv-data.mount.conf")
	read := func(path string) string {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	got := generate()
	if got.code != exitDone || !strings.Contains(read(mount), "Where=/srv/data\n") || !strings.Contains(read(dropIn), "RequiresMountsFor=/srv/data\n") {
		t.Errorf("exit %d: %s%s", got.code, got.stderr, got.stdout)
	}
	if did := strings.Join(*calls, "; "); did != "daemon-reload; enable --quiet -- srv-data.mount" {
		t.Errorf("systemctl %s", did)
	}
	if got := generate(); got.code != exitDone || strings.Contains(got.stdout, "wrote") || strings.Count(got.stdout, "unchanged") != 2 {
		t.Errorf("again: exit %d: %s%s", got.code, got.stderr, got.stdout)
	}
	if err := os.WriteFile(dropIn, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := generate("-o", "ro"); got.code != exitRefused || !strings.Contains(got.stderr, "--force") || read(dropIn) != "mine" || strings.Contains(read(mount), "ro") {
		t.Errorf("over another file: exit %d: %s%s\n%s", got.code, got.stderr, got.stdout, read(mount))
	}
	got = generate("--force", "--output", "json")
	var g struct {
		Files  []struct{ Path, Text string }
		Fstab  string
		Enable string
	}
	if err := json.Unmarshal([]byte(got.stdout), &g); err != nil || got.code != exitDone || len(g.Files) != 2 || read(dropIn) != g.Files[1].Text || g.Enable != "srv-data.mount" {
		t.Errorf("forced: exit %d, %v: %s%s", got.code, err, got.stderr, got.stdout)
	}
	left, err := os.ReadDir(filepath.Dir(mount))
	if err != nil || len(left) != 2 {
		t.Errorf("%v, %v", left, err)
	}
	r.host.Systemctl = func(context.Context, ...string) error { return errors.New("no bus") }
	if got := generate(); got.code != exitFailed || !strings.Contains(got.stderr, "hint: systemctl daemon-reload && systemctl enable srv-data.mount") {
		t.Errorf("without systemd: exit %d: %s", got.code, got.stderr)
	}
}
