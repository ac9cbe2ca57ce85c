package mounts_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

func TestMain(m *testing.M) { harness.Main(m, harness.Child{Env: autofsDir, Run: serveAutofs}) }

// mountRig is a host on which mount(8) finds the helpers mount.csi and umount.csi. The host has its
// own libmount table. The helpers and the table disappear at the end of the test.
type mountRig struct{ harness.Recorded }

func newMountRig(t *testing.T) mountRig {
	t.Helper()
	helpers(t)
	h := mountRig{harness.StartRecorded(t, "10s", nil)}
	for _, id := range []string{"data", "more"} {
		h.Register(id, "single-node-writer")
	}
	h.Register("shared", "single-node-multi-writer")
	return h
}

// helpers installs the mount helpers in /usr/sbin, in the tests' mount namespace only.
func helpers(t *testing.T) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(harness.BinDir, "sbin")
	must(os.Mkdir(dir, 0o755))
	t.Cleanup(func() { must(os.Remove(dir)) })
	mount := func(source, at, kind, data string) {
		t.Helper()
		must(unix.Mount(source, at, kind, 0, data))
		t.Cleanup(func() { must(unix.Unmount(at, unix.MNT_DETACH)) })
	}
	mount("tmpfs", dir, "tmpfs", "")
	for _, d := range []string{"upper", "work"} {
		must(os.Mkdir(filepath.Join(dir, d), 0o755))
	}
	for _, name := range []string{"mount.csi", "umount.csi"} {
		must(os.Symlink(filepath.Join(harness.BinDir, "volctl"), filepath.Join(dir, "upper", name)))
	}
	mount("overlay", "/usr/sbin", "overlay", fmt.Sprintf("lowerdir=/usr/sbin,upperdir=%[1]s/upper,workdir=%[1]s/work", dir))
	// Do not use the libmount table of the real host.
	if err := os.Mkdir("/run/mount", 0o755); err == nil {
		t.Cleanup(func() { must(os.Remove("/run/mount")) })
	} else if !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	mount("tmpfs", "/run/mount", "tmpfs", "")
}

// at creates a mount point and returns its path.
func (h mountRig) at(name string) string {
	h.T.Helper()
	dir := filepath.Join(h.Dir, name)
	h.Must(os.MkdirAll(dir, 0o755))
	// An immutable directory could not be removed.
	h.T.Cleanup(func() { _ = exec.Command("chattr", "-i", dir).Run() })
	return dir
}

// tool runs a system program, such as mount, and returns its result.
func (h mountRig) tool(name string, args ...string) harness.Result {
	h.T.Helper()
	return h.run(exec.Command(name, args...))
}

func (h mountRig) run(cmd *exec.Cmd) harness.Result {
	h.T.Helper()
	cmd.Env = h.Env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		h.T.Fatalf("%v: %v", cmd.Args, err)
	}
	return harness.Result{Out: out.String(), Err: errs.String(), Code: cmd.ProcessState.ExitCode()}
}

// ok asserts that a program succeeded and printed nothing on stderr. It returns the text on stdout.
func (h mountRig) ok(r harness.Result) string {
	h.T.Helper()
	if r.Code != 0 || r.Err != "" {
		h.T.Fatalf("exit %d\n%s%s", r.Code, r.Out, r.Err)
	}
	return strings.TrimSpace(r.Out)
}

// says asserts that a program ended with the given exit code and printed the given words on stderr.
func (h mountRig) says(r harness.Result, code int, words ...string) {
	h.T.Helper()
	for _, w := range words {
		if !strings.Contains(r.Err, w) {
			h.T.Errorf("it does not say %q", w)
			code = -1
		}
	}
	if r.Code != code {
		h.T.Errorf("exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
}

// mounted reports whether a file system is mounted on a directory.
func (h mountRig) mounted(dir string) bool { return strings.Contains(h.Mounts(), " "+dir+" ") }

// state returns the state of a volume.
func (h mountRig) state(volume string) string {
	return h.Volctl("volume", "status", volume, "-o", "go-template={{.state}}")
}

// utab returns the content of libmount's table.
func (h mountRig) utab() string {
	raw, err := os.ReadFile("/run/mount/utab")
	if !errors.Is(err, os.ErrNotExist) {
		h.Must(err)
	}
	return string(raw)
}

// TestMountHelper checks mount(8) and umount(8) with volumes.
func TestMountHelper(t *testing.T) {
	h := newMountRig(t)
	t.Run("life", h.within(mountLife))
	t.Run("options", h.within(mountOptions))
	t.Run("fstab", h.within(mountFstab))
	t.Run("on demand", h.within(mountOnDemand))
	t.Run("volctl", h.within(mountVolctl))
	t.Run("refused", h.within(mountRefused))
	t.Run("busy", h.within(mountBusy))
	t.Run("killed", h.within(mountKilled))
	t.Run("slow release", h.within(mountSlowRelease))
	t.Run("no agent", h.within(mountNoAgent))
}

// within returns a subtest that runs one part of a test and then asserts that no volume is mounted
// or claimed.
func (h mountRig) within(part func(h mountRig)) func(t *testing.T) {
	return func(t *testing.T) {
		outer := h.T
		h.T = t
		defer func() { h.T = outer }()
		part(h)
		for _, v := range []string{"data", "more", "shared"} {
			h.Volctl("wait", "--volume", v, "--for", "free", "--timeout", "60s")
		}
		h.ExpectNoMounts()
	}
}

// mountLife checks that a claim ends with its mount, however the mount ends. As long as the mount
// exists, the agent must refuse a second writer.
func mountLife(h mountRig) {
	dir, other := h.at("srv/data"), h.at("srv/other")
	unit := strings.ReplaceAll(strings.Trim(dir, "/"), "/", "-") + ".mount"
	h.ok(h.tool("mount", "-t", "csi", "data", dir))
	h.Must(os.WriteFile(dir+"/file", []byte("kept"), 0o644))
	screen := h.Volctl("volume", "status", "data")
	for _, words := range []string{unit, dir, "mount"} {
		if !strings.Contains(screen, words) {
			h.T.Errorf("status does not say %q:\n%s", words, screen)
		}
	}
	if u := h.utab(); !strings.Contains(u, "TARGET="+dir+" ") || !strings.Contains(u, "helper=csi") {
		h.T.Errorf("umount(8) will not call umount.csi:\n%s", u)
	}
	h.says(h.tool("mount", "-t", "csi", "data", other), 32, `mount.csi: cannot mount volume "data" at `+other+": ", `"`+unit+`"`, "; ")
	if h.mounted(other) {
		h.T.Error("a second writer got the volume")
	}
	mark := h.Mark()
	h.ok(h.tool("mount", "-t", "csi", "data", dir)) // the same command must succeed twice
	h.ExpectCalls(mark)
	if n := strings.Count(h.utab(), "helper=csi"); n != 1 {
		h.T.Errorf("it is in libmount's table %d times:\n%s", n, h.utab())
	}

	h.ok(h.tool("umount", dir))
	if got := h.state("data"); got != "free" {
		h.T.Errorf("after umount it is %s", got)
	}
	h.ExpectCalls(mark, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish)
	if u := h.utab(); strings.Contains(u, dir) {
		h.T.Errorf("left in libmount's table:\n%s", u)
	}
	if err := os.WriteFile(dir+"/stray", nil, 0o644); !errors.Is(err, unix.EPERM) {
		h.T.Errorf("the bare directory can be written to: %v", err)
		_ = os.Remove(dir + "/stray")
	}

	// A volume can be mounted on an immutable directory. If a user unmounts the volume without the
	// mount helper, the agent itself detaches the claim.
	for _, unmount := range []func(){
		func() { h.ok(h.tool("umount", "-i", dir)) },
		func() { h.Must(unix.Unmount(dir, 0)) },
	} {
		h.ok(h.tool("mount", "-t", "csi", "data", dir, "-o", "ro"))
		if raw, err := os.ReadFile(dir + "/file"); string(raw) != "kept" || err != nil {
			h.T.Errorf("the data is %q, %v", raw, err)
		}
		if err := os.WriteFile(dir+"/file", nil, 0o644); !errors.Is(err, unix.EROFS) {
			h.T.Errorf("it can be written to: %v", err)
		}
		unmount()
		h.Volctl("wait", "--volume", "data", "--for", "free", "--timeout", "60s")
	}
}

// mountOptions checks each mount option with the output of system programs.
func mountOptions(h mountRig) {
	dir, file := h.at("opt"), filepath.Join(h.Dir, "block")
	h.Must(os.WriteFile(file, nil, 0o600))
	h.ok(h.tool("mount", "-t", "csi", "shared", dir, "-o", "nosuid,nodev,noexec,noatime,alloc=web,uid=33,gid=33,mode=0750,_netdev,x-foo"))
	options := h.ok(h.tool("findmnt", "-n", "-o", "OPTIONS", dir))
	for _, o := range []string{"rw", "nosuid", "nodev", "noexec", "noatime"} {
		if !strings.Contains(","+options+",", ","+o+",") {
			h.T.Errorf("no %s: %s", o, options)
		}
	}
	if got := h.ok(h.tool("stat", "-c", "%u %g %a", dir)); got != "33 33 750" {
		h.T.Errorf("its root is %s", got)
	}
	if got := h.Volctl("claim", "list", "-q"); got != "shared\tweb" {
		h.T.Errorf("claims: %q", got)
	}
	h.says(h.tool("mount", "-t", "csi", "shared", dir, "-o", "alloc=web,ro"), 32, "mount.csi: ", `"web"`)
	h.says(h.tool("mount", "-t", "csi", "shared", dir, "-o", "alloc=more"), 32, `volume "shared" is mounted there already, for alloc "web"; volctl umount `+dir)
	if out := h.tool("umount", "-a", "-v", "-O", "_netdev", "-t", "notmpfs"); strings.Contains(out.Err, "csi") {
		h.T.Errorf("umount -a: %+v", out)
	}
	if h.mounted(dir) {
		h.T.Error("umount(8) does not know that it is of the network")
	}

	// A block device needs a file as its mount point.
	h.Volctl("volume", "create", "disk", "--plugin", "local", "--size", "1MiB", "--param", "type=image", "--attachment-mode", "block-device")
	h.ok(h.tool("mount", "-t", "csi", "disk", file))
	if got := h.ok(h.tool("stat", "-c", "%F", file)); got != "block special file" {
		h.T.Errorf("there is a %s", got)
	}
	h.ok(h.tool("umount", file))
	if got := h.state("disk"); got != "free" {
		h.T.Errorf("after umount it is %s", got)
	}
	h.says(h.tool("mount", "-t", "csi", "disk", dir), 32, `mount.csi: cannot mount volume "disk" at `+dir+": ", "file")
	h.Volctl("wait", "--volume", "disk", "--for", "free", "--timeout", "60s")
	h.Volctl("volume", "delete", "disk", "-y")
}

// mountFstab mounts all lines of an fstab file, repeats this, and mounts one line by its directory.
func mountFstab(h mountRig) {
	one, two := h.at("f/one"), h.at("f/two")
	fstab := filepath.Join(h.Dir, "fstab")
	h.Must(os.WriteFile(fstab, fmt.Appendf(nil, "data %s csi _netdev,nofail,nosuid 0 0\nmore %s csi ro,_netdev,x-systemd.mount-timeout=2min,comment=x 0 0\n", one, two), 0o644))
	h.ok(h.tool("mount", "-a", "-T", fstab))
	mark := h.Mark()
	if out := h.ok(h.tool("mount", "-a", "-T", fstab)); out != "" {
		h.T.Errorf("once more it says %q", out)
	}
	h.ExpectCalls(mark)
	if !h.mounted(one) || !h.mounted(two) {
		h.T.Fatalf("mounted are:\n%s", h.Mounts())
	}
	h.says(h.tool("mount", "-T", fstab, "-o", "remount,ro", one), 1, "cannot be remounted; umount it and mount it again")
	h.ok(h.tool("umount", one, two))
	h.ok(h.tool("mount", "-T", fstab, one))
	h.ok(h.tool("umount", one))
}

// mountOnDemand checks a directory with an automount. A process that opens the directory waits
// until the volume is mounted. As under systemd, mount and umount run in the process group of the
// automount's server, because processes in this group do not wait.
func mountOnDemand(h mountRig) {
	dir := h.at("demand")
	auto := newAutomount(h.T.(*testing.T), dir)
	for range 2 {
		looks := exec.Command("ls", "-d", dir+"/.")
		looks.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		h.Must(looks.Start())
		h.Must(auto.asked().Close())
		h.ok(h.among(auto, "mount", "-t", "csi", "data", dir, "-o", "_netdev"))
		auto.answer()
		h.Must(looks.Wait())
		h.ok(h.among(auto, "mount", "-t", "csi", "data", dir, "-o", "_netdev"))
		h.Must(os.WriteFile(dir+"/on-demand", nil, 0o644))
		h.ok(h.among(auto, "umount", dir))
		if got := h.state("data"); got != "free" {
			h.T.Errorf("after umount it is %s", got)
		}
	}
	auto.stop()
	if _, err := os.Stat(dir + "/on-demand"); err == nil {
		h.T.Error("it was written beneath the mount")
	}
}

// among runs a program in the process group of the automount server.
func (h mountRig) among(auto *automount, name string, args ...string) harness.Result {
	h.T.Helper()
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: auto.cmd.Process.Pid}
	return h.run(cmd)
}

// mountVolctl checks the commands volctl mount and volctl umount and their exit codes.
func mountVolctl(h mountRig) {
	dir := h.at("hand")
	if out := h.Volctl("mount", "data", dir); !strings.HasPrefix(out, `mounted volume "data" at `+dir) {
		h.T.Errorf("mount said %q", out)
	}
	if out := h.Volctl("mount", "data", dir); !strings.Contains(out, "is mounted at "+dir+" already") {
		h.T.Errorf("again it said %q", out)
	}
	h.says(h.Try("volume", "detach", "data"), 4, "volctl: ", "hint: ")
	mark := h.Mark()
	if out := h.Volctl("umount", dir); out != "unmounted "+dir+` and detached volume "data"` {
		h.T.Errorf("umount said %q", out)
	}
	h.ExpectCalls(mark, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish)
	h.says(h.Try("umount", dir), 3, "nothing is mounted there")
	h.says(h.Try("umount", "/proc"), 4, "the mount there is not a volume of volagent: proc", "hint: umount /proc")

	h.Volctl("volume", "claim", "data", "--alloc", "svc", "--at", dir)
	h.says(h.Try("umount", dir), 4, "does not end with that mount", "hint: volctl volume detach data svc")
	h.Volctl("volume", "detach", "data")
}

// mountRefused checks the exit code and the message for each kind of invalid input. Afterwards no
// volume may be mounted or claimed.
func mountRefused(h mountRig) {
	dir, full, taken := h.at("bad"), h.at("full"), h.at("taken")
	h.Must(os.WriteFile(full+"/entry", nil, 0o644))
	h.Must(os.Symlink(dir, filepath.Join(h.Dir, "link")))
	h.Must(unix.Mount("tmpfs", taken, "tmpfs", 0, ""))
	defer func() { h.Must(unix.Unmount(taken, 0)) }()
	cannot := func(volume, dir string) string {
		return fmt.Sprintf("mount.csi: cannot mount volume %q at %s: ", volume, dir)
	}
	mark := h.Mark()
	for _, tt := range []struct {
		volume, dir, options string
		code                 int
		words                []string
	}{
		{"dta", dir, "rw", 32, []string{cannot("dta", dir), `near: "data"`}},
		{"data", dir, "aloc=x", 1, []string{cannot("data", dir), `unknown mount option "aloc"; did you mean alloc=?`}},
		{"data", dir, "discard", 1, []string{cannot("data", dir), "mount_flag=discard"}},
		{"data", dir, "access_mode=multi-node-multi-writer", 32, []string{cannot("data", dir), "multi-node-multi-writer"}},
		{"data", dir, "attachment_mode=block-device", 1, []string{cannot("data", dir), "it is a directory; "}},
		{"data", full, "rw", 32, []string{cannot("data", full), `it is not empty, and the mount would hide its content: "entry"; `}},
		{"data", taken, "rw", 32, []string{cannot("data", taken), "something else is mounted there already: tmpfs; umount " + taken}},
	} {
		r := h.tool("mount", "-t", "csi", tt.volume, tt.dir, "-o", tt.options)
		h.says(r, tt.code, tt.words...)
		if strings.Count(r.Err, "\n") != 1 {
			h.T.Errorf("not one line: %q", r.Err)
		}
	}
	helper := func(args ...string) harness.Result { return h.tool("/sbin/mount.csi", args...) }
	none, link := filepath.Join(h.Dir, "none"), filepath.Join(h.Dir, "link")
	h.says(helper("data", none, "-o", "rw"), 32, cannot("data", none)+"there is no "+none+"; mkdir -p "+none)
	h.says(helper("data", link, "-o", "rw"), 1, cannot("data", link)+"a symbolic link on the way leads to "+dir)
	// The helper must refuse the option even with the sloppy option -s.
	h.says(helper("data", dir, "-s", "-o", "rw,nosuch"), 1, "nosuch")
	h.ok(helper("data", dir, "-f", "-o", "rw"))
	h.says(h.asNobody("data", dir), 1, cannot("data", dir)+"no permission to use the socket ", `; a line with "user" in /etc/fstab is mounted as the user who asks for it; run it as root`)
	h.ExpectCalls(mark)

	h.ok(h.tool("mount", "-t", "csi", "data", full, "-o", "nonempty"))
	h.ok(h.tool("umount", full))
	if _, err := os.Stat(full + "/entry"); err != nil {
		h.T.Error(err)
	}
	h.Must(os.WriteFile(full+"/more", nil, 0o644)) // the refused directory must still be writable
}

// asNobody runs mount.csi as an unprivileged user, as mount(8) does for an fstab line with the
// option "user".
func (h mountRig) asNobody(args ...string) harness.Result {
	h.T.Helper()
	program := filepath.Join(h.Dir, "mount.csi")
	raw, err := os.ReadFile(filepath.Join(harness.BinDir, "volctl"))
	h.Must(err)
	h.Must(os.WriteFile(program, raw, 0o755))
	return h.tool("setpriv", append([]string{"--reuid=65534", "--regid=65534", "--clear-groups", program}, args...)...)
}

// mountBusy checks that umount does not unmount a volume in use, and that the error names the
// process that uses the volume. A lazy umount must succeed nevertheless.
func mountBusy(h mountRig) {
	dir := h.at("busy")
	h.ok(h.tool("mount", "-t", "csi", "data", dir))
	s := harness.StartSleeper(h.T, dir)
	mark := h.Mark()
	holder := fmt.Sprintf(`target is busy, held by pid %d sleep, cwd "%s"`, s.PID(), dir)
	h.says(h.tool("umount", dir), 32, "umount.csi: cannot unmount "+dir+": "+holder)
	h.says(h.Try("umount", dir), 4, "volctl: cannot unmount "+dir+": "+holder, "hint: stop its users")
	h.Must(unix.Mount("tmpfs", dir, "tmpfs", 0, "")) // cover the volume with another mount
	h.ok(h.tool("umount", "-i", dir))
	if !h.mounted(dir) || h.state("data") != "mounted" {
		h.T.Errorf("it is %s, mounted are:\n%s", h.state("data"), h.Mounts())
	}
	h.ExpectCalls(mark)
	h.ok(h.tool("umount", "-l", dir))
	if h.mounted(dir) {
		h.T.Error("a lazy umount left it")
	}
	s.Kill()
}

// mountKilled kills a mount helper with SIGKILL or SIGTERM while the plugin is slow. No claim and
// no mount may remain.
func mountKilled(h mountRig) {
	dir := h.at("killed")
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		h.AddFaults(csitest.Fault{Method: csitest.NodeStage, Delay: 2 * time.Second})
		cmd := exec.Command("/sbin/mount.csi", "data", dir, "-o", "rw,_netdev")
		var errs bytes.Buffer
		cmd.Env, cmd.Stderr = h.Env, &errs
		h.Must(cmd.Start())
		h.Await("the claim", func() bool { return h.Volctl("claim", "list", "-q", "--volume", "data") != "" })
		h.Must(cmd.Process.Signal(sig))
		err := cmd.Wait()
		if sig == syscall.SIGTERM && (cmd.ProcessState.ExitCode() != 32 || !strings.Contains(errs.String(), "it was interrupted, and the claim is withdrawn") &&
			!strings.Contains(errs.String(), "the claim is withdrawn, and its detach continues")) {
			h.T.Errorf("%v: %s", err, errs.String())
		}
		h.Volctl("wait", "--volume", "data", "--for", "free", "--timeout", "60s")
		h.ExpectNoMounts()
	}
}

// mountSlowRelease checks that umount frees the directory at once, even if the detach takes a long
// time.
func mountSlowRelease(h mountRig) {
	dir := h.at("slow")
	h.ok(h.tool("mount", "-t", "csi", "data", dir))
	h.AddFaults(csitest.Fault{Method: csitest.NodeUnstage, Delay: 5 * time.Second})
	h.says(h.Try("umount", dir, "--timeout", "1s"), 5, `cannot detach volume "data" yet (`+dir+" is unmounted, and the agent continues)", "hint: volctl volume status data")
	if h.mounted(dir) {
		h.T.Error("it is still mounted")
	}
}

// mountNoAgent checks the mount helpers while no agent runs. The error for an fstab line without
// _netdev must explain that such a line would stop the boot. An umount must work without the agent,
// and the next agent must detach the claim.
func mountNoAgent(h mountRig) {
	dir, gone := h.at("alone"), h.at("gone")
	fstab := filepath.Join(h.Dir, "fstab")
	h.Must(os.WriteFile(fstab, fmt.Appendf(nil, "data %s csi nofail 0 0\nmore %s csi _netdev,nofail,timeout=1s 0 0\n", dir, gone), 0o644))
	h.Env = append(h.Env, "LIBMOUNT_FSTAB="+fstab)
	h.ok(h.tool("mount", "-t", "csi", "data", dir))
	h.Kill()
	h.says(h.tool("mount", "-t", "csi", "more", gone), 2, "no agent answers on ", "; start the agent for this socket")
	h.says(h.tool("mount", gone), 2, "no agent answers on ", ", for 1s; start the agent for this socket")
	h.says(h.tool("mount", dir), 2, "; add _netdev,nofail to its line in /etc/fstab: without _netdev it is mounted before the agent can run, and stops the boot; ")
	h.says(h.tool("umount", dir), 0, "umount.csi: warning: "+dir+" is unmounted; the agent detaches its volume when it runs: no agent answers")
	if h.mounted(dir) {
		h.T.Error("it is still mounted")
	}
	waits := exec.Command("mount", "-t", "csi", "more", gone, "-o", "_netdev")
	waits.Env = h.Env
	h.Must(waits.Start())
	h.Start("rec")
	h.Volctl("wait", "--volume", "data", "--for", "free", "--timeout", "60s")
	h.Must(waits.Wait())
	h.ok(h.tool("umount", gone))
}
