package guest_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/csitest"
)

// TestPackage checks the installation, upgrade, removal and purge of the Debian package, and the
// operations that the package must refuse. All subtests use the same guest and run in this order.
func TestPackage(t *testing.T) {
	t.Parallel()
	first, plugin := installable(t)
	next := packaged(t, t.TempDir(), "../../../..", "2.0.0", 0o022, "deb")
	t.Run("reproducible", func(t *testing.T) { testReproducible(t, first) })
	t.Run("files", func(t *testing.T) { testPackageFiles(t, first) })
	g := newTree(t)
	g.have("usr/bin/csitest", plugin)
	g.have("root/1.deb", first["deb"])
	g.have("root/2.deb", next["deb"])
	if state := g.boot(); state != "running" {
		t.Fatalf("the guest is %s: %s", state, g.failed())
	}
	nodes := map[string]int{"fuse": int(unix.Mkdev(10, 229)), "loop-control": int(unix.Mkdev(10, 237))}
	for name, dev := range nodes {
		g.must(unix.Mknod(filepath.Join(g.root, "dev", name), unix.S_IFCHR|0o600, dev))
	}
	for i := range 64 {
		g.must(unix.Mknod(fmt.Sprintf("%s/dev/loop%d", g.root, i), unix.S_IFBLK|0o600, int(unix.Mkdev(7, uint32(i)))))
	}
	p := &packageGuest{guest: g}
	for _, part := range []struct {
		name string
		run  func(*packageGuest)
	}{
		{"install", (*packageGuest).testInstall},
		{"sandbox", (*packageGuest).testSandbox},
		{"uses", (*packageGuest).testUses},
		{"metrics over TCP", (*packageGuest).testScraped},
		{"runtime's commands", (*packageGuest).testOutside},
		{"volumes of a runtime", (*packageGuest).testVolumes},
		{"cluster", (*packageGuest).testCluster},
		{"upgrade", (*packageGuest).testUpgrade},
		{"a configuration that is refused", (*packageGuest).testBadConfig},
		{"refused removal", (*packageGuest).testRefused},
		{"forced removal", (*packageGuest).testForced},
		{"remove", (*packageGuest).testRemove},
		{"purge", (*packageGuest).testPurge},
	} {
		if !t.Run(part.name, func(t *testing.T) { p.guest = g.on(t); part.run(p) }) {
			return // after a failure, the next subtest would start in a wrong state
		}
	}
}

// packaged builds packages of the given version in the directory dir. It returns the paths of the
// packages by format.
func packaged(t testing.TB, dir, source, version string, umask int, formats ...string) map[string]string {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-c", fmt.Sprintf(`umask %04o; exec "$0" "$@"`, umask), source + "/scripts/package", dir, version}, formats...)...)
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1700000000", fmt.Sprintf("TZ=UTC+%d", umask%12))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var words bytes.Buffer
	cmd.Stderr = &words
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("cannot build the packages: %v\n%s", err, words.String())
	}
	paths := map[string]string{}
	for _, path := range strings.Fields(string(out)) {
		paths[strings.TrimPrefix(filepath.Ext(path), ".")] = path
	}
	return paths
}

// testReproducible checks that the same source always produces the same packages, even in another
// directory and with other file times and modes.
func testReproducible(t *testing.T, first map[string]string) {
	copied := t.TempDir()
	entries, err := os.ReadDir("../../../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if slices.Contains([]string{".git", "bin", "dist"}, e.Name()) {
			continue
		}
		if out, err := exec.Command("sh", "-c", `umask 077; exec cp -r "$0" "$1"`, "../../../../"+e.Name(), copied).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	again := packaged(t, t.TempDir(), copied, "1.0.0", 0o077)
	for _, name := range []string{"volagent_1.0.0_" + runtime.GOARCH + ".cdx.json", "SHA256SUMS"} {
		a, b := filepath.Join(filepath.Dir(first["deb"]), name), filepath.Join(filepath.Dir(again["deb"]), name)
		if sum(t, a) != sum(t, b) {
			t.Errorf("the two builds of %s differ", name)
		}
	}
	check := exec.Command("sha256sum", "--strict", "-c", "SHA256SUMS")
	check.Dir = filepath.Dir(first["deb"])
	if out, err := check.CombinedOutput(); err != nil || strings.Count(string(out), ": OK") != 3 {
		t.Errorf("the checksums: %v\n%s", err, out)
	}
	bom, err := os.ReadFile(filepath.Join(filepath.Dir(first["deb"]), "volagent_1.0.0_"+runtime.GOARCH+".cdx.json"))
	if err != nil || !strings.Contains(string(bom), `"pkg:golang/go.etcd.io/bbolt@`) || !strings.Contains(string(bom), `"pkg:golang/std@go`) {
		t.Errorf("the SBOM names neither bbolt nor Go (%v):\n%.500s", err, bom)
	}
	for _, format := range []string{"deb", "rpm"} {
		if a, b := sum(t, first[format]), sum(t, again[format]); a != b || filepath.Base(first[format]) != filepath.Base(again[format]) {
			t.Errorf("the two builds of the %s differ: %s is %s, %s is %s", format, first[format], a, again[format], b)
		}
	}
}

func sum(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(raw))
}

// packageFiles lists the files of both packages, with their modes.
var packageFiles = map[string]string{
	"/usr/bin/volagent":                                                "-rwxr-xr-x",
	"/usr/bin/volctl":                                                  "-rwxr-xr-x",
	"/usr/sbin/mount.csi -> ../bin/volctl":                             "l",
	"/usr/sbin/umount.csi -> ../bin/volctl":                            "l",
	"/usr/lib/systemd/system/volagent.service":                         "-rw-r--r--",
	"/usr/lib/systemd/system/volagent.socket":                          "-rw-r--r--",
	"/usr/bin/volagent-etcd":                                           "-rwxr-xr-x",
	"/usr/lib/systemd/system/volagent-etcd.service":                    "-rw-r--r--",
	"/usr/lib/systemd/system-generators/volagent-cluster-generator":    "-rwxr-xr-x",
	"/usr/lib/sysusers.d/volagent.conf":                                "-rw-r--r--",
	"/usr/lib/tmpfiles.d/volagent.conf":                                "-rw-r--r--",
	"/etc/volagent/volagent.yaml":                                      "-rw-r--r--",
	"/etc/volagent/plugins.d":                                          "drwxr-xr-x",
	"/etc/volagent/volumes.d":                                          "drwx------",
	"/etc/containers/containers.conf.d/50-volagent.conf":               "-rw-r--r--",
	"/usr/share/man/man8/volagent.8.gz":                                "-rw-r--r--",
	"/usr/share/man/man8/volctl-volume-claim.8.gz":                     "-rw-r--r--",
	"/usr/share/man/man8/mount.csi.8.gz":                               "-rw-r--r--",
	"/usr/share/man/man8/umount.csi.8.gz":                              "-rw-r--r--",
	"/usr/share/bash-completion/completions/volctl":                    "-rw-r--r--",
	"/usr/share/fish/vendor_completions.d/volctl.fish":                 "-rw-r--r--",
	"/usr/share/doc/volagent/sbom.cdx.json":                            "-rw-r--r--",
	"/usr/share/doc/volagent/third-party-licenses.gz":                  "-rw-r--r--",
	"/usr/share/doc/volagent/examples/plugins.d/hostpath.yaml.example": "-rw-r--r--",
	"/usr/share/doc/volagent/examples/grafana/volagent.json":           "-rw-r--r--",
	"/usr/share/doc/volagent/examples/prometheus/volagent.rules.yaml":  "-rw-r--r--",
}

// testPackageFiles checks that both packages contain the same files and scripts. All files must
// belong to root and have the time of the source. An upgrade must keep configuration files that the
// administrator has changed.
func testPackageFiles(t *testing.T, paths map[string]string) {
	listed := map[string]string{"deb": output(t, "dpkg-deb", "-c", paths["deb"])}
	conffiles := map[string]string{"deb": output(t, "dpkg-deb", "-I", paths["deb"], "conffiles")}
	scripts := map[string]string{}
	for _, name := range []string{"postinst", "prerm", "postrm"} {
		scripts["deb"] += output(t, "dpkg-deb", "-I", paths["deb"], name)
	}
	if _, err := exec.LookPath("rpm"); err == nil {
		query := func(args ...string) string {
			return output(t, slices.Concat([]string{"rpm", "--dbpath", t.TempDir(), "-qp"}, args, []string{paths["rpm"]})...)
		}
		listed["rpm"] = query("--qf", "[%{FILEMODES:perms} %{FILEUSERNAME}/%{FILEGROUPNAME} %{FILESIZES} %{FILEMTIMES:date} %{FILENAMES} -> %{FILELINKTOS}\n]")
		conffiles["rpm"] = query("--configfiles")
		scripts["rpm"] = query("--qf", "%{POSTIN}\n%{PREUN}\n%{POSTUN}\n")
		if strip := strings.NewReplacer("\n", ""); strip.Replace(scripts["rpm"]) != strip.Replace(scripts["deb"]) {
			t.Errorf("the scripts of the rpm are\n%s\nand those of the deb\n%s", scripts["rpm"], scripts["deb"])
		}
		// rpm prints "cn" for %config(noreplace).
		if bad := query("--qf", "[%{FILEFLAGS:fflags} %{FILENAMES}\n]"); strings.Count(bad, "cn /etc/") != 2 {
			t.Errorf("the flags of the rpm's files:\n%s", bad)
		}
	} else {
		t.Log("no rpm here; scripts/setup test installs it")
	}
	for format, list := range listed {
		has := map[string]string{} // mode by file name
		for line := range strings.Lines(list) {
			if !strings.Contains(line, " root/root ") || !strings.Contains(line, "2023") {
				t.Errorf("%s: %s", format, line)
			}
			path := strings.TrimSuffix(strings.TrimSpace(line[strings.Index(line, "/etc/")+strings.Index(line, "/usr/")+1:]), " ->")
			has[strings.TrimSuffix(path, "/")] = strings.Fields(line)[0]
		}
		for path, mode := range packageFiles {
			if !strings.HasPrefix(has[path], mode) || mode == "" {
				t.Errorf("%s: %s has mode %q", format, path, has[path])
			}
		}
		if c := conffiles[format]; c != "/etc/containers/containers.conf.d/50-volagent.conf\n/etc/volagent/volagent.yaml\n" {
			t.Errorf("%s: the configuration files are %q", format, c)
		}
	}
}

func output(t testing.TB, args ...string) string {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	var words bytes.Buffer
	cmd.Stderr = &words
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v: %s", args, err, words.String())
	}
	return string(out)
}

// packageGuest is the guest of TestPackage. It also contains the processes, mounts and writing
// services that must remain unchanged.
type packageGuest struct {
	*guest
	writers []*scribe
	plugins map[string]string // pids by plugin id
	etcd    string            // pid of volagent-etcd, or empty
	mounts  string
}

// agentPID returns the process id of the agent.
func (p *packageGuest) agentPID() string {
	p.t.Helper()
	return p.run("systemctl", "show", "-p", "MainPID", "--value", "volagent")
}

// volumeMounts returns the lines for volumes in the guest's mount table.
func (p *packageGuest) volumeMounts() string {
	p.t.Helper()
	return p.run("grep", "-E", "/var/lib/volagent/csi/| /srv/line ", "/proc/1/mountinfo")
}

// untouched asserts that all plugin processes still run, that no mount has changed, and that all
// services continue to write.
func (p *packageGuest) untouched(after string) {
	p.t.Helper()
	for id, was := range p.plugins {
		if r := p.try("test", "-d", "/proc/"+was); r.Code != 0 {
			p.t.Errorf("after %s: the process of plugin %s is gone", after, id)
		}
	}
	if pid := p.etcdPID(); p.etcd != "" && pid != p.etcd {
		p.t.Errorf("after %s: volagent-etcd was process %s and is %s", after, p.etcd, pid)
	}
	if now := p.volumeMounts(); now != p.mounts {
		p.t.Errorf("after %s the mounts are\n%s\nand were\n%s", after, now, p.mounts)
	}
	for _, w := range p.writers {
		w.on(p.guest).goesOn()
	}
}

// on returns a copy of the scribe that reports failures to the given guest's subtest.
func (l *scribe) on(g *guest) *scribe { return &scribe{g: g, unit: l.unit, file: l.file} }

func (p *packageGuest) testInstall() {
	p.run("dpkg", "-i", "/root/1.deb")
	p.run("systemctl", "is-enabled", "volagent.service")
	p.run("systemctl", "is-active", "volagent.service")
	if v := p.run("volctl", "status", "-o", "go-template={{.version}}"); v != "1.0.0" {
		p.t.Errorf("version %q runs", v)
	}
	if s := p.run("stat", "-c", "%F %a %U:%G", "/run/volagent/volagent.sock"); s != "socket 660 root:volagent" {
		p.t.Errorf("the socket is %q", s)
	}
	if to := p.run("readlink", "-f", "/sbin/mount.csi"); to != "/usr/bin/volctl" {
		p.t.Errorf("mount(8) finds %s", to)
	}
	p.run("bash", "-n", "/usr/share/bash-completion/completions/volctl")
	pages, err := filepath.Glob(filepath.Join(p.root, "usr/share/man/man8/*.8.gz"))
	if err != nil || len(pages) < 40 {
		p.t.Errorf("%d pages, %v", len(pages), err)
	}
	if _, err := exec.LookPath("man"); err == nil {
		for _, page := range []string{"volctl-volume-claim", "mount.csi"} {
			if text := output(p.t, "man", "-l", filepath.Join(p.root, "usr/share/man/man8", page+".8.gz")); !strings.Contains(text, "\nSEE ALSO\n") {
				p.t.Errorf("the page of %s is\n%s", page, text)
			}
		}
		// Skip this page, because it only includes another page that groff alone does not find.
		pages = slices.DeleteFunc(pages, func(page string) bool { return filepath.Base(page) == "umount.csi.8.gz" })
		said, err := exec.Command("sh", append([]string{"-c", `zcat "$@" | groff -man -Kutf8 -Tutf8 -ww -z`, "sh"}, pages...)...).CombinedOutput()
		if err != nil || len(said) > 0 {
			p.t.Errorf("the pages are not right: %v\n%s", err, said)
		}
	}
}

// testSandbox checks that systemd restricts the agent but not the plugins. The mounts of a
// directory, of a disk image and of a FUSE file system must all be visible in the host's mount
// namespace.
func (p *packageGuest) testSandbox() {
	env, err := csitest.Config{Base: "/var/lib/fuse", DriverName: "fuse.example.com", AnyVolume: true, Stage: true, Fuse: true}.Environment()
	p.must(err)
	p.write("etc/volagent/plugins.d/fuse.yaml", fmt.Sprintf("id: fuse\nexec:\n  command: [/usr/bin/csitest]\n  env:\n    CSITEST_CONFIG: '%s'\n",
		strings.TrimPrefix(env[0], "CSITEST_CONFIG=")))
	p.await("its file to be read", func() bool { return p.try("volctl", "plugin", "status", "fuse").Code == 0 })
	p.plugins = map[string]string{"fuse": p.ready("fuse"), "local": p.ready("local")}
	for _, args := range [][]string{{"dir"}, {"image", "--size", "32MiB", "--param", "type=image"}} {
		p.run(append([]string{"volctl", "volume", "create", "--plugin", "local"}, args...)...)
		path := p.run("volctl", "volume", "claim", args[0], "--alloc", "a", "--owner", "none")
		p.writers = append(p.writers, p.writes(args[0], path))
	}
	p.writers = append(p.writers, p.claim("fuse", "fusevol"))
	p.register("fuse", "line")
	p.run("sh", "-c", "echo 'line /srv/line csi _netdev 0 0' >>/etc/fstab && systemctl daemon-reload && systemctl start srv-line.mount")
	p.writers = append(p.writers, p.writes("line", "/srv/line"))
	p.mounts = p.volumeMounts()
	for _, want := range []string{"per-alloc/a/dir ", "per-alloc/a/image ", "per-alloc/a/fusevol ", " /srv/line ", " ext4 /dev/loop", " fuse"} {
		if !strings.Contains(p.mounts, want) {
			p.t.Errorf("process 1 sees no %q in\n%s", want, p.mounts)
		}
	}
	if agent, host := p.run("readlink", "/proc/"+p.agentPID()+"/ns/mnt"), p.run("readlink", "/proc/1/ns/mnt"); agent != host {
		p.t.Errorf("the agent is in mount namespace %s, the host in %s", agent, host)
	}
	free := p.restrictions("1")
	if r := p.restrictions(p.agentPID()); r == free || !strings.Contains(r, "NoNewPrivs:\t1") || !strings.Contains(r, "Seccomp:\t2") {
		p.t.Errorf("the agent's restrictions are %q", r)
	}
	for id, pid := range p.plugins {
		if r := p.restrictions(pid); r != free {
			p.t.Errorf("the restrictions of plugin %s are %q, and not %q", id, r, free)
		}
	}
	if out := p.try("journalctl", "-u", "volagent", "-p", "warning", "-o", "cat").Out; strings.Contains(out, "not permitted") || strings.Contains(out, "denied") {
		p.t.Errorf("the agent was kept from something:\n%s", out)
	}
}

func (p *packageGuest) restrictions(pid string) string {
	p.t.Helper()
	return p.run("grep", "-E", "^(NoNewPrivs|Seccomp|CapBnd):", "/proc/"+pid+"/status")
}

// testOutside checks the container runtime's commands that the agent runs. These commands run
// without the agent's restrictions, the agent receives their output, and they end when the agent
// ends.
func (p *packageGuest) testOutside() {
	p.write("usr/bin/podman", `#!/bin/sh
grep -E '^(NoNewPrivs|Seccomp|CapBnd):' /proc/self/status >/run/podman-status
case $1 in
image) echo sha256:1 ;;
container) echo "Error: no such container" >&2; exit 125 ;;
run) [ ! -e /run/hang ] || exec sleep 7778; echo "Error: the words of run" >&2; exit 125 ;;
esac
`)
	p.run("chmod", "755", "/usr/bin/podman")
	p.write("etc/volagent/plugins.d/boxed.yaml", "id: boxed\ncontainer: {runtime: podman, image: localhost/none}\n")
	p.await("podman's words", func() bool {
		r := p.try("volctl", "plugin", "status", "boxed", "-o", "go-template={{.reason}}")
		return strings.Contains(r.Out, "podman run failed: the words of run")
	})
	if r, free := p.run("cat", "/run/podman-status"), p.restrictions("1"); r != free {
		p.t.Errorf("the restrictions of podman are %q, and not %q", r, free)
	}
	p.write("run/hang", "")
	hung := func() bool { return p.try("sh", "-c", "grep -ls '[7]778' /proc/[0-9]*/cmdline").Out != "" }
	p.run("volctl", "plugin", "start", "boxed", "--no-wait")
	p.await("a podman that hangs", hung)
	p.run("systemctl", "restart", "volagent")
	p.run("rm", "/run/hang", "/etc/volagent/plugins.d/boxed.yaml")
	p.await("its end", func() bool { return !hung() })
	p.await("its plugin's", func() bool { return p.try("volctl", "plugin", "status", "boxed").Code != 0 })
	if left := p.run("systemctl", "list-units", "--all", "--no-legend", "--plain", "volagent-run-*"); left != "" {
		p.t.Errorf("services are left: %s", left)
	}
	p.run("rm", "/usr/bin/podman")
}
