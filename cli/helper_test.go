package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cli/mount"
)

// helperRun is like mountRun, but runs volctl under the name mount.csi.
func helperRun(t *testing.T, f *fake) (*run, *sham, string) {
	t.Helper()
	r, s, dir := mountRun(t, f)
	r.program = "/usr/sbin/mount.csi"
	r.env = map[string]string{"LIBMOUNT_FSTAB": filepath.Join(t.TempDir(), "fstab")}
	return r, s, dir
}

func TestMountHelper(t *testing.T) {
	f := world()
	r, s, dir := helperRun(t, f)
	got := claims(t, f, s, "data", mount.UnitName(dir))
	expect(t, r.volctl("data", dir, "-o", "rw,_netdev,nofail,"), 0, "", "")
	if got.At != dir || got.Owner.Kind != api.OwnerMount || len(s.calls) != 1 {
		t.Errorf("asked for %+v, calls %q", got, s.calls)
	}
	s.table, s.calls = "", nil
	expect(t, r.volctl("data", dir, "-s", "-n", "-v", "-o", "ro", "-t", "csi"), 0, fmt.Sprintf("mount.csi: mounted volume \"data\" at %s for alloc %q\n", dir, mount.UnitName(dir)), "")
	if !got.ReadOnly || len(s.calls) != 0 {
		t.Errorf("asked for %+v, calls %q", got, s.calls)
	}
	f.sent()
	s.table = ""
	expect(t, r.volctl("data", dir, "-f", "-o", "rw"), 0, "", "")
	expectSent(t, f)
	if res := r.volctl("--help"); res.code != 0 || !strings.Contains(res.stdout, "mount.csi VOLUME DIR") || res.stderr != "" {
		t.Errorf("help: %+v", res)
	}

	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"data", 1, "mount.csi: it needs VOLUME and DIR; for mount(8): mount.csi VOLUME DIR [-fnsv] -o OPTIONS; the options: volctl mount --help\n"},
		{"data @ more", 1, "it needs VOLUME and DIR"},
		{"data @ -x", 1, "unknown shorthand flag: 'x' in -x; "},
		{"data @ -t csi.foo -o rw", 1, "there is no type \"csi.foo\"; the only type is csi\n"},
		{"data @ -s -o rw,bogus", 1, "mount.csi: cannot mount volume \"data\" at @: unknown mount option \"bogus\"; pass an option of the file system"},
		{"data @/none -o rw", 32, "mount.csi: cannot mount volume \"data\" at @/none: there is no @/none; mkdir -p @/none\n"},
	} {
		res := r.volctl(strings.Fields(strings.ReplaceAll(tt.args, "@", dir))...)
		if want := strings.ReplaceAll(tt.want, "@", dir); res.code != tt.code || res.stdout != "" || !strings.Contains(res.stderr, want) || strings.Count(res.stderr, "\n") != 1 {
			t.Errorf("%s: exit %d, %q, %q\nwant exit %d, %q", tt.args, res.code, res.stdout, res.stderr, tt.code, want)
		}
	}
	expectSent(t, f)
	for code, want := range map[api.Code]int{
		api.CodeFailed: 32, api.CodeInvalid: 1, api.CodeNotFound: 32, api.CodeRefused: 32, api.CodeTimeout: 32,
		api.CodePluginUnavailable: 32, api.CodePermission: 1, "of a newer agent": 32,
	} {
		f.on["PUT /v1/volumes/data/claims/a"] = refuses(api.Error{Code: code, Message: "line 1\nline 2", Hint: "do x"})
		expect(t, r.volctl("data", dir, "-o", "rw,alloc=a"), want, "", "mount.csi: cannot mount volume \"data\" at "+dir+": line 1 line 2; do x\n")
	}
}

// TestMountHelperWithoutAgent checks that the helper waits for the agent if the mount has the
// option _netdev. Without _netdev, the error must tell the user how to change the line in fstab.
func TestMountHelperWithoutAgent(t *testing.T) {
	const why = ": without _netdev it is mounted before the agent can run, and stops the boot; start the agent for this socket, or name another socket with --socket or VOLCTL_SOCKET\n"
	f := world()
	r, s, dir := helperRun(t, f)
	r.socket = filepath.Join(shortDir(t), "s")
	cannot := "mount.csi: cannot mount volume \"data\" at " + dir + ": no agent answers on SOCKET: there is no such socket"
	expect(t, r.volctl("data", dir, "-o", "rw"), 2, "", cannot+"; start the agent for this socket, or name another socket with --socket or VOLCTL_SOCKET\n")
	unit := "0::/system.slice/" + mount.UnitName(dir) + "\n"
	r.cgroup = unit
	expect(t, r.volctl("data", dir, "-o", "rw"), 2, "", "; add _netdev to the Options= of "+mount.UnitName(dir)+why)
	fstab := func(line string) {
		if err := os.WriteFile(r.env["LIBMOUNT_FSTAB"], []byte("# data "+dir+" csi rw\n\n/dev/sda1 / ext4\n"+line+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	fstab("data\t" + dir + "/ csi nofail 0 0")
	expect(t, r.volctl("data", dir, "-o", "rw,nofail"), 2, "", "; add _netdev,nofail to its line in /etc/fstab"+why)
	r.cgroup = ""
	fstab("data " + dir + " csi rw,_netdev 0 0")
	expect(t, r.volctl("data", dir, "-o", "rw"), 2, "", "there is no such socket; start the agent for this socket, or name another socket with --socket or VOLCTL_SOCKET\n")

	booting := "mount.csi: cannot mount volume \"data\" at " + dir + ": the host is booting; add _netdev,nofail to its line"
	s.boots = true // a mount without _netdev may be part of the boot
	expect(t, r.volctl("data", dir, "-o", "rw"), 2, "", "there is no such socket; start the agent for this socket, or name another socket with --socket or VOLCTL_SOCKET\n")
	fstab("data " + dir + " csi rw,nofail 0 0")
	expect(t, r.volctl("data", dir, "-o", "rw,nofail"), 2, "", "there is no such socket; add _netdev,nofail to its line")
	r.cgroup = unit
	expect(t, r.volctl("data", dir, "-o", "rw,nofail"), 2, "", booting)

	begun := time.Now()
	expect(t, r.volctl("data", dir, "-o", "rw,_netdev,timeout=1s"), 2, "", cannot+", for 1s; start the agent for this socket, or name another socket with --socket or VOLCTL_SOCKET\n")
	if took := time.Since(begun); took < 700*time.Millisecond {
		t.Errorf("it waited %s", took)
	}
	claims(t, f, s, "data", mount.UnitName(dir))
	came := make(chan struct{})
	go func() {
		defer close(came)
		time.Sleep(300 * time.Millisecond)
		f.listen(t, r.socket)
	}()
	expect(t, r.volctl("data", dir, "-o", "rw,_netdev"), 0, "", "")
	<-came
	// During boot, the helper refuses a mount without _netdev even if an agent runs.
	expect(t, r.volctl("data", dir, "-o", "rw,nofail"), 2, "", booting)
	// A user may mount the volume during the boot, and systemd may mount it after the boot.
	for _, in := range []string{"", unit} {
		s.boots, s.table, r.cgroup = in == "", "", in
		expect(t, r.volctl("data", dir, "-o", "rw,nofail"), 0, "", "")
	}
}

// TestMountHelperHangs checks the helper with an agent that accepts the connection but never
// answers. The helper must fail at the timeout.
func TestMountHelperHangs(t *testing.T) {
	f := world()
	r, _, dir := helperRun(t, f)
	f.on["GET /v1/health"] = func(r *http.Request) (any, error) {
		<-r.Context().Done()
		return nil, errors.New("nobody listens")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	r.ctx = ctx
	expect(t, r.volctl("data", dir, "-o", "rw"), 32, "", "no answer from the agent: it took too long; systemctl status volagent\n")
}

func umountRun(t *testing.T, f *fake) (r *run, s *sham, dir string) {
	t.Helper()
	r, s, dir = mountRun(t, f)
	s.mounts(dir, "ext4")
	f.volumes[0].Claims = []api.Claim{{
		Volume: "data", Alloc: "a", At: dir, Wanted: true, State: api.ClaimMounted, Owner: api.Owner{Kind: api.OwnerMount, State: api.OwnerRunning},
	}}
	f.on["DELETE /v1/volumes/data/claims/a"] = answers(api.Done{})
	return r, s, dir
}

func (s *sham) expectCalls(t *testing.T, want ...string) {
	t.Helper()
	if got := strings.Join(s.calls, "; "); got != strings.Join(want, "; ") {
		t.Errorf("calls: %s\nwant: %s", got, strings.Join(want, "; "))
	}
	s.calls = nil
}

func TestUmount(t *testing.T) {
	f := world()
	r, s, dir := umountRun(t, f)
	expect(t, r.volctl("umount", dir), 0, "unmounted "+dir+" and detached volume \"data\"\n", "")
	s.expectCalls(t, "umount2 "+dir+" 8")
	if sent := f.sent(); len(sent) != 2 || !strings.HasPrefix(sent[1], "DELETE /v1/volumes/data/claims/a?wait=") || strings.Contains(sent[1], "force") {
		t.Errorf("sent %q", sent)
	}

	// The directory is no longer mounted, but the claim still exists.
	expect(t, r.volctl("umount", dir, "-o", "json"), 0, "{\n  \"dir\": \""+dir+"\",\n  \"volume\": \"data\",\n  \"alloc\": \"a\",\n  \"outcome\": \"detached\"\n}\n", "")
	s.expectCalls(t)

	// The agent already detached the claim when the volume was unmounted.
	s.mounts(dir, "ext4")
	f.on["DELETE /v1/volumes/data/claims/a"] = refuses(api.Error{Code: api.CodeNotFound, Message: "no claim"})
	expect(t, r.volctl("umount", "-l", "-f", dir, "-q"), 0, "data\n", "")
	s.expectCalls(t, "umount2 "+dir+" 11")

	// A tmpfs is mounted over the volume.
	s.mounts(dir, "ext4")
	s.mounts(dir, "tmpfs")
	expect(t, r.volctl("umount", dir), 0, "unmounted "+dir+"\n", "something was mounted over another mount at "+dir+", which is still there: ext4 on /dev/sdb\n")

	// The detach takes longer than the timeout.
	f.on["DELETE /v1/volumes/data/claims/a"] = refuses(api.Error{Code: api.CodeTimeout, Message: "after 80s: its plugin is not ready", Hint: "x"})
	expect(t, r.volctl("umount", dir), 5, "", "volctl: cannot detach volume \"data\" yet ("+dir+" is unmounted, and the agent continues): after 80s: its plugin is not ready\nhint: volctl volume status data\n")

	// Another process mounts the volume again before the detach.
	s.mounts(dir, "ext4")
	s.unmounts = func() {}
	f.on["DELETE /v1/volumes/data/claims/a"] = refuses(api.Error{Code: api.CodeRefused, Message: "it is owned by the mount"})
	f.sent()
	expect(t, r.volctl("umount", dir), 0, "unmounted "+dir+"\n", "was unmounted, and volume \"data\" is mounted there again\n")
	if sent := strings.Join(f.sent(), " "); strings.Contains(sent, "force") {
		t.Errorf("umount must not detach the claim of the process that mounted it again: %s", sent)
	}

	// The agent closes the connection.
	s.unmounts = nil
	f.on["DELETE /v1/volumes/data/claims/a"] = func(*http.Request) (any, error) { return nil, errors.New("die") }
	expect(t, r.volctl("umount", dir), 0, "unmounted "+dir+"\n", dir+" is unmounted; the agent detaches volume \"data\" when it runs: the agent on SOCKET disconnected")
}

// TestUmountAnew checks that "volctl umount" ends a claim even if the agent refuses the detach
// because it is mounting the volume again.
func TestUmountAnew(t *testing.T) {
	f := world()
	r, s, dir := umountRun(t, f)
	f.on["DELETE /v1/volumes/data/claims/a"] = func(req *http.Request) (any, error) {
		if req.URL.Query().Get("force") != "true" {
			return nil, &api.Error{Code: api.CodeRefused, Message: "it is being made anew"}
		}
		return api.Done{}, nil
	}
	expect(t, r.volctl("umount", dir), 0, "unmounted "+dir+" and detached volume \"data\"\n", "")
	if sent := strings.Join(f.sent(), " "); !strings.Contains(sent, "force") {
		t.Errorf("it is to end with its mount: %s", sent)
	}

	// The directory has two claims: an old claim that is being detached, and a new claim.
	next := f.volumes[0].Claims[0]
	f.volumes[0].Claims[0].Wanted, next.Alloc, next.Wanted = false, "b", true
	f.volumes[0].Claims = append(f.volumes[0].Claims, next)
	s.mounts(dir, "ext4")
	expect(t, r.volctl("umount", dir, "-o", "go-template={{.alloc}}"), 0, "b\n", "")
}

// TestUmountRefused checks that "volctl umount" unmounts only mounts that belong to a claim of
// "volctl mount".
func TestUmountRefused(t *testing.T) {
	f := world()
	r, s, dir := umountRun(t, f)
	f.volumes[0].Claims[0].Owner.Kind = api.OwnerUnit
	expect(t, r.volctl("umount", dir), 4, "", "volume \"data\" is mounted there for alloc \"a\", whose claim does not end with that mount\nhint: volctl volume detach data a\n")
	f.volumes[0].Claims[0].Adopted = true
	s.err = errors.New("the kernel's words")
	expect(t, r.volctl("umount", dir), 1, "", "volctl: cannot unmount "+dir+": the kernel's words\n")
	f.volumes[0].Claims = nil
	s.calls = nil
	expect(t, r.volctl("umount", dir), 4, "", "the mount there is not a volume of volagent: ext4 on /dev/sdb\nhint: umount "+dir+"\n")
	expect(t, r.volctl("umount", dir+"/x"), 3, "", "nothing is mounted there\n")
	expect(t, r.volctl("umount", dir, "--timeout", "0s"), 2, "", "--timeout must be more than 0")
	s.expectCalls(t)

	// Without an agent, "volctl umount" finds the mount in libmount's table.
	r.socket += "x"
	expect(t, r.volctl("umount", dir), 7, "", "hint: umount "+dir+" works without the agent, which detaches the volume when it runs\n")
	s.expectCalls(t)
	s.utab = "SRC=/dev/sdb TARGET=" + dir + " ROOT=/vol OPTS=_netdev,helper=csi\n"
	s.err = nil
	expect(t, r.volctl("umount", dir), 0, "unmounted "+dir+"\n", dir+" is unmounted; the agent detaches its volume when it runs: no agent answers")
	s.expectCalls(t, "umount2 "+dir+" 8")
}

// TestUmountBusy checks the error if the kernel refuses to unmount. No claim may be detached.
func TestUmountBusy(t *testing.T) {
	f := world()
	r, s, dir := umountRun(t, f)
	s.mounts(dir+"/a b", "tmpfs")
	file, err := os.Create(dir + "/open")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for errno, tt := range map[error]struct {
		code, helper int
		want         string
	}{
		unix.EBUSY:  {4, 32, fmt.Sprintf("target is busy, held by mount \"%[1]s/a b\"; pid %d cli.test, open file \"%[1]s/open\"", dir, os.Getpid())},
		unix.EPERM:  {8, 1, "no permission to unmount"},
		unix.EINVAL: {3, 32, "nothing is mounted there"},
	} {
		s.err = errno
		r.program = ""
		expect(t, r.volctl("umount", dir), tt.code, "", "volctl: cannot unmount "+dir+": "+tt.want)
		r.program = "umount.csi"
		expect(t, r.volctl(dir), tt.helper, "", "umount.csi: cannot unmount "+dir+": "+tt.want)
	}
	for _, sent := range f.sent() {
		if sent != "GET /v1/claims" {
			t.Errorf("sent %s", sent)
		}
	}
}

// TestUmountHangs checks that "volctl umount" does not wait for a system call that hangs.
func TestUmountHangs(t *testing.T) {
	f := world()
	r, s, dir := umountRun(t, f)
	free := make(chan struct{})
	h := s.host()
	h.Unmount = func(string, int) error { <-free; return nil }
	r.host = h
	defer close(free)
	expect(t, r.volctl("umount", dir, "--timeout", "100ms"), 5, "", "the kernel does not answer: context deadline exceeded; the unmount continues\nhint: umount -l "+dir+"\n")
}

// TestUmountHelper checks that umount.csi succeeds whenever the directory was unmounted. If the
// detach then fails, it prints a warning.
func TestUmountHelper(t *testing.T) {
	f := world()
	r, s, dir := umountRun(t, f)
	r.program = "umount.csi"
	expect(t, r.volctl(dir, "-n", "-r", "-v", "-t", "fuse.csitest"), 0, "umount.csi: unmounted "+dir+" and detached volume \"data\"\n", "")
	s.expectCalls(t, "umount2 "+dir+" 8")
	expect(t, r.volctl(dir, "-lf"), 0, "", "") // -l and -f set flags of umount2(2)
	s.expectCalls(t, "umount2 "+dir+" 11")

	for _, code := range []api.Code{api.CodeTimeout, api.CodeFailed, api.CodePluginUnavailable} {
		f.on["DELETE /v1/volumes/data/claims/a"] = refuses(api.Error{Code: code, Message: "why"})
		expect(t, r.volctl(dir), 0, "", "umount.csi: warning: cannot detach volume \"data\" yet ("+dir+" is unmounted, and the agent continues): why; volctl volume status data\n")
	}
	f.sent()
	f.volumes[0].Claims[0].Owner.Kind = api.OwnerPID
	expect(t, r.volctl(dir), 0, "", "")
	// The owner of this claim is a process, so umount.csi must not detach the claim.
	expectSent(t, f, "GET /v1/claims")
	r.socket += "x"
	expect(t, r.volctl(dir), 0, "", "umount.csi: warning: "+dir+" is unmounted; the agent detaches its volume when it runs: no agent answers on SOCKET")
	expect(t, r.volctl(), 1, "", "umount.csi: it needs DIR; for umount(8): umount.csi DIR [-flnrv]\n")
	expect(t, r.volctl(dir, "-x"), 1, "", "unknown shorthand flag")
}
