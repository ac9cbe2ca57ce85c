package localdriver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/request"
	"github.com/volagent/volagent/agent/localdriver/sandbox"
	"github.com/volagent/volagent/agent/localdriver/store"
)

func quota(size string) map[string]string { return map[string]string{request.ParamQuota: size} }

func (b *bench) modify(id string, params map[string]string) error {
	_, err := b.ControllerModifyVolume(background(), &csi.ControllerModifyVolumeRequest{VolumeId: id, MutableParameters: params})
	return err
}

func (b *bench) createWith(name string, mutable, params map[string]string) (string, error) {
	req := createReq(name, 0, params, mountCap(writer, ""))
	req.MutableParameters = mutable
	resp, err := b.CreateVolume(background(), req)
	return resp.GetVolume().GetVolumeId(), err
}

func (b *bench) recorded(id string) store.Volume {
	b.t.Helper()
	v, err := store.ReadVolume(filepath.Join(b.state, store.DirVolumes, id, store.MetaFile), id)
	sandbox.Must(b.t, err)
	return v
}

// bytesOf returns the byte statistics of a volume that is mounted at a path.
func (b *bench) bytesOf(id, path string) *csi.VolumeUsage {
	b.t.Helper()
	resp, err := b.stats(id, path)
	sandbox.Must(b.t, err)
	return resp.GetUsage()[0]
}

func TestQuotaRefused(t *testing.T) {
	b := newBench(t)
	id, err := b.createWith("v", quota("none"), nil)
	sandbox.Must(t, err)
	sandbox.Must(t, b.modify(id, quota("none")))
	sandbox.Must(t, b.modify(id, nil))
	for what, c := range map[string]struct {
		params map[string]string
		words  []string
	}{
		"no project quotas": {quota("5GiB"), []string{b.dir, "prjquota"}},
		"no size":           {quota("much"), []string{`"much"`, "none", "10GiB"}},
		"nothing":           {quota("0"), []string{`"0"`}},
		"unknown":           {map[string]string{"iops": "5"}, []string{`"iops"`, request.ParamQuota}},
	} {
		t.Run(what, func(t *testing.T) {
			sandbox.WantCode(t, b.modify(id, c.params), codes.InvalidArgument, c.words...)
			_, err := b.createWith("other", c.params, nil)
			sandbox.WantCode(t, err, codes.InvalidArgument, c.words...)
		})
	}
	if got := b.listed(); len(got) != 1 || b.recorded(id).Project != 0 {
		t.Errorf("something was made: %v, %+v", got, b.recorded(id))
	}
	sandbox.WantCode(t, b.modify("", quota("none")), codes.InvalidArgument, "id is empty")
	sandbox.WantCode(t, b.modify("vol-aaaaaaaaaaaaaaaa", quota("none")), codes.NotFound)
	if sandbox.InUserNamespace(t) {
		return
	}
	img := b.create("i", 16*mib, image("ext4"), mountCap(writer, ""))
	sandbox.WantCode(t, b.modify(img, quota("5GiB")), codes.InvalidArgument, "size is its limit")
	sandbox.Must(t, b.modify(img, quota("none")))
	_, err = b.createWith("j", quota("5GiB"), image("ext4"))
	sandbox.WantCode(t, err, codes.InvalidArgument, "size is its limit")
}

// fakeProjects fakes a filesystem with project quotas, because many kernels do not support them.
type fakeProjects struct {
	mu       sync.Mutex
	absent   error
	fail     error // the error that assign returns
	limits   map[uint32]int64
	assigned map[uint32]int // how often assign was called for each project
}

func newFakeProjects() *fakeProjects {
	return &fakeProjects{limits: map[uint32]int64{}, assigned: map[uint32]int{}}
}

func (f *fakeProjects) check() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.absent
}

func (f *fakeProjects) assign(_ context.Context, dir string, project uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := os.ReadDir(dir); err != nil {
		return err
	}
	if f.fail == nil {
		f.assigned[project]++
	}
	return f.fail
}

func (f *fakeProjects) limit(project uint32, bytes int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.limits[project] = bytes
	return f.absent
}

func (f *fakeProjects) usage(project uint32) (used, limit int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return 3 * mib, f.limits[project], f.absent
}

// set changes the abilities of the fake filesystem, as a mount with other options does.
func (f *fakeProjects) set(absent, fail error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.absent, f.fail = absent, fail
}

// state returns the limit of a project, and how often assign was called for it.
func (f *fakeProjects) state(project uint32) (limit int64, assigned int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.limits[project], f.assigned[project]
}

func newQuotaBench(t *testing.T) (*bench, *fakeProjects) {
	t.Helper()
	b, f := newBench(t), newFakeProjects()
	b.stop()
	b.projects = f
	b.start()
	return b, f
}

func TestQuota(t *testing.T) {
	b, f := newQuotaBench(t)
	want := func(id string, limit int64, assigned int) {
		t.Helper()
		v := b.recorded(id)
		if l, a := f.state(v.Project); v.Quota != limit || v.Assigning || v.Project < 1<<30 || l != limit || a != assigned {
			t.Errorf("recorded is %+v, in force are %d bytes, assigned %d times", v, l, a)
		}
	}
	id, err := b.createWith("v", quota("5GiB"), nil)
	sandbox.Must(t, err)
	want(id, 5*gib, 1)
	plain, err := b.createWith("plain", nil, nil)
	sandbox.Must(t, err)
	for _, size := range []string{"10MiB", "10MiB", "20MiB"} {
		sandbox.Must(t, b.modify(plain, quota(size)))
	}
	want(plain, 20*mib, 1)
	if b.recorded(id).Project == b.recorded(plain).Project {
		t.Error("two volumes share a project")
	}
	c := mountCap(writer, "")
	sandbox.Must(t, b.stage(plain, c))
	if u := b.bytesOf(plain, b.staging(plain)); u.GetTotal() != 20*mib || u.GetUsed() != 3*mib || u.GetAvailable() > 17*mib {
		t.Errorf("stats: %v", u)
	}
	sandbox.Must(t, b.modify(plain, nil)) // a request without the parameter changes nothing
	want(plain, 20*mib, 1)
	sandbox.Must(t, b.modify(plain, quota("none")))
	want(plain, 0, 1)
	if u := b.bytesOf(plain, b.staging(plain)); u.GetTotal() == 20*mib {
		t.Errorf("stats without a quota: %v", u)
	}
	sandbox.Must(t, b.modify(plain, quota("1MiB")))
	want(plain, mib, 1) // the volume has kept its project, so assign was not called again
	project := b.recorded(plain).Project
	b.clear(plain)
	if limit, _ := f.state(project); limit != 0 {
		t.Errorf("the limit of a deleted volume is still %d", limit)
	}
	b.wantHealth(id, "")
}

// TestQuotaCutShort checks quotas that are recorded but not, or only partly, set in the filesystem.
// A start of the driver, a staging, and a repeated request must each set the quota.
func TestQuotaCutShort(t *testing.T) {
	b, f := newQuotaBench(t)
	id, err := b.createWith("v", nil, nil)
	sandbox.Must(t, err)
	c := mountCap(writer, "")
	again := map[string]func(){
		"start":   func() { b.restart() },
		"staging": func() { sandbox.Must(t, b.stage(id, c)); sandbox.Must(t, b.unstage(id)) },
		"request": func() { sandbox.Must(t, b.modify(id, quota("10MiB"))) },
	}
	// If a volume has a quota but no project, the driver must assign a project.
	v := b.recorded(id)
	v.Quota = 10 * mib
	sandbox.Must(t, store.WriteVolume(filepath.Join(b.state, store.DirVolumes, id), v))
	b.restart()
	sandbox.Await(t, "a project", func() bool { v := b.recorded(id); return v.Project != 0 && !v.Assigning })
	if limit, assigned := f.state(b.recorded(id).Project); limit != 10*mib || assigned != 1 {
		t.Errorf("in force are %d bytes, assigned %d times", limit, assigned)
	}
	for what, finish := range again {
		v := b.recorded(id)
		v.Quota, v.Project, v.Assigning = 0, 0, false
		sandbox.Must(t, store.WriteVolume(filepath.Join(b.state, store.DirVolumes, id), v))
		b.restart()
		f.set(nil, errors.New("cut short"))
		sandbox.WantCode(t, b.modify(id, quota("10MiB")), codes.Internal, "cut short")
		if v = b.recorded(id); !v.Assigning || v.Quota != 10*mib {
			t.Fatalf("%s: recorded is %+v", what, v)
		}
		b.wantHealth(id, "DEGRADED QuotaNotEnforced", "not all of the volume")
		f.set(nil, nil)
		finish()
		sandbox.Await(t, what, func() bool { return !b.recorded(id).Assigning })
		if limit, assigned := f.state(v.Project); limit != 10*mib || assigned != 1 {
			t.Errorf("%s: in force are %d bytes, assigned %d times", what, limit, assigned)
		}
		// The filesystem may also have lost the limit but kept the project.
		sandbox.Must(t, f.limit(v.Project, 0))
		b.wantHealth(id, "DEGRADED QuotaNotEnforced", "the limit is 0 bytes")
		finish()
		sandbox.Await(t, what, func() bool { limit, _ := f.state(v.Project); return limit == 10*mib })
		sandbox.Await(t, "good health", func() bool {
			h, err := b.ControllerGetVolumeHealth(background(), &csi.ControllerGetVolumeHealthRequest{VolumeId: id})
			return err == nil && len(h.GetVolumeHealth().GetHealthStatuses()) == 0
		})
	}
	// If quotas are no longer available, the driver still mounts the volume, and its health reports
	// the problem.
	f.set(errors.New("mounted without prjquota"), nil)
	b.restart()
	sandbox.Must(t, b.stage(id, c))
	b.wantHealth(id, "DEGRADED QuotaNotEnforced", "mounted without prjquota")
	if u := b.bytesOf(id, b.staging(id)); u.GetTotal() == 10*mib {
		t.Errorf("stats of a quota that is not in force: %v", u)
	}
	sandbox.WantCode(t, b.modify(id, quota("20MiB")), codes.InvalidArgument, "mounted without prjquota")
	b.clear(id)
}

// TestQuotaByTheKernel tests with the project quotas of a real filesystem, if the kernel supports
// them.
func TestQuotaByTheKernel(t *testing.T) {
	sandbox.NeedLoops(t)
	for fsType, mkfs := range map[string][]string{
		"xfs":  {"mkfs.xfs", "-q"},
		"ext4": {"mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota"},
	} {
		t.Run(fsType, func(t *testing.T) {
			b := newBench(t)
			b.stop()
			dir := sandbox.Mkdir(t, b.path("fs"))
			if err := mountWith(t, dir, fsType, mkfs); err != nil {
				t.Skipf("this kernel has no project quotas of %s: %v", fsType, err)
			}
			b.state = filepath.Join(dir, "state")
			// The driver must stop before the test unmounts its filesystem.
			t.Cleanup(func() { b.stop() })
			b.start()
			testKernelQuota(t, b)
		})
	}
}

// mountWith makes a filesystem and mounts it with project quotas until the test ends.
func mountWith(t *testing.T, dir, fsType string, mkfs []string) error {
	t.Helper()
	img := dir + ".img"
	sandbox.Must(t, os.WriteFile(img, nil, 0o600))
	sandbox.Must(t, os.Truncate(img, 400*mib))
	if out, err := exec.Command(mkfs[0], append(mkfs[1:], img)...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", mkfs[0], err, out)
	}
	l, err := loopdev.AttachLoop(img, false)
	sandbox.Must(t, err)
	t.Cleanup(func() {
		if err := loopdev.DetachLoop(background(), "of the test", img, l); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount(l.Path(), dir, fsType, 0, "prjquota"); err != nil {
		return err
	}
	t.Cleanup(func() { sandbox.Must(t, unix.Unmount(dir, 0)) })
	return nil
}

func testKernelQuota(t *testing.T, b *bench) {
	t.Helper()
	c := mountCap(writer, "")
	fresh, err := b.createWith("fresh", quota("8MiB"), nil)
	sandbox.Must(t, err)
	full, err := b.createWith("full", nil, nil)
	sandbox.Must(t, err)
	for _, id := range []string{fresh, full} {
		sandbox.Must(t, b.stage(id, c))
		sandbox.Must(t, os.Chmod(b.staging(id), 0o777))
	}
	sandbox.Must(t, b.fill(full, "sub/before", 4))
	sandbox.Must(t, os.Symlink("/", filepath.Join(b.staging(full), "sub", "link")))
	sandbox.Must(t, unix.Mkfifo(filepath.Join(b.staging(full), "sub", "pipe"), 0o600))
	sandbox.Must(t, b.modify(full, quota("8MiB")))
	if u := b.bytesOf(full, b.staging(full)); u.GetTotal() != 8*mib || u.GetUsed() < 4*mib || u.GetUsed() > 5*mib {
		t.Errorf("what was there does not count: %v", u)
	}
	for _, id := range []string{fresh, full} {
		b.wantHealth(id, "")
		sandbox.Must(t, b.fill(id, "a", 2))
		if err := b.fill(id, "b", 20); err == nil {
			t.Errorf("20 MiB went into 8: %v", b.bytesOf(id, b.staging(id)))
		}
		if u := b.bytesOf(id, b.staging(id)); u.GetTotal() != 8*mib || u.GetUsed() > 8*mib {
			t.Errorf("stats: %v", u)
		}
		sandbox.Must(t, b.modify(id, quota("64MiB")))
		sandbox.Must(t, b.fill(id, "c", 20))
		b.restart()
		if u := b.bytesOf(id, b.staging(id)); u.GetTotal() != 64*mib || u.GetUsed() < 22*mib {
			t.Errorf("stats: %v", u)
		}
		sandbox.Must(t, b.modify(id, quota("none")))
		sandbox.Must(t, b.fill(id, "d", 80))
		b.clear(id)
	}
}

// fill writes a file of the given size in MiB as an ordinary user, because ext4 does not apply
// quotas to root.
func (b *bench) fill(id, name string, size int) error {
	b.t.Helper()
	p := filepath.Join(b.staging(id), name)
	if dir := filepath.Dir(p); dir != b.staging(id) {
		sandbox.Must(b.t, os.MkdirAll(dir, 0o777))
		sandbox.Must(b.t, os.Chmod(dir, 0o777))
	}
	cmd := exec.Command("dd", "if=/dev/zero", "bs=1M", fmt.Sprintf("count=%d", size))
	f, err := os.Create(p)
	sandbox.Must(b.t, err)
	sandbox.Must(b.t, os.Chown(p, 65534, 65534))
	cmd.Stdout = f
	var words strings.Builder
	cmd.Stderr = &words
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	err = errors.Join(cmd.Run(), f.Close())
	if err != nil {
		return fmt.Errorf("%w: %s", err, words.String())
	}
	return nil
}

// TestQuotaOfCopy requests a copy with a quota. The quota must apply to all copied data. The copy
// must not inherit the quota of its source.
func TestQuotaOfCopy(t *testing.T) {
	b, f := newQuotaBench(t)
	src, err := b.createWith("src", quota("5MiB"), nil)
	sandbox.Must(t, err)
	sandbox.Write(t, filepath.Join(b.data(src), "f"), "text")
	plain := b.copyOf("plain", fromSnap(b.snap("s", src)), mountCap(writer, ""))
	if v := b.recorded(plain); v.Quota != 0 || v.Project != 0 {
		t.Errorf("a copy took over a quota: %+v", v)
	}
	req := copyReq("limited", fromVolume(src), mountCap(writer, ""))
	req.MutableParameters = quota("7MiB")
	resp, err := b.CreateVolume(background(), req)
	sandbox.Must(t, err)
	v := b.recorded(resp.GetVolume().GetVolumeId())
	if l, a := f.state(v.Project); v.Quota != 7*mib || l != 7*mib || a != 1 || v.Project == b.recorded(src).Project {
		t.Errorf("recorded is %+v, in force are %d bytes, assigned %d times", v, l, a)
	}
	sandbox.WantContent(t, filepath.Join(b.data(v.ID), "f"), "text")
}
