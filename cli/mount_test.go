package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/mount"
)

// sham is a fake host with a mount table that the test controls. It does not really mount anything.
type sham struct {
	mu       sync.Mutex
	table    string
	utab     string
	err      error // the error that every unmount returns
	calls    []string
	unmounts func() // if set, called for each unmount; otherwise the last mount disappears
	boots    bool
}

func (s *sham) host() mount.Host {
	return mount.Host{
		Mounts: func() ([]byte, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return []byte(s.table), nil
		},
		Table: func() ([]byte, error) { return []byte(s.utab), nil },
		Unmount: func(path string, flags int) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.calls = append(s.calls, fmt.Sprintf("umount2 %s %d", path, flags))
			switch {
			case s.unmounts != nil:
				s.unmounts()
			case s.err == nil:
				lines := slices.Collect(strings.Lines(s.table))
				s.table = strings.Join(lines[:max(0, len(lines)-1)], "")
			}
			return s.err
		},
		Remember: func(_ context.Context, source, dir, options string) error {
			s.calls = append(s.calls, fmt.Sprintf("remember %s %s %s", source, dir, options))
			return errors.New("of no matter")
		},
		Booting: func(context.Context) bool { return s.boots },
	}
}

// mounts adds a line to the mount table: a mount of /dev/sdb at dir.
func (s *sham) mounts(dir, kind string) {
	s.table += fmt.Sprintf("90 28 8:16 /vol %s rw,relatime shared:1 - %s /dev/sdb rw\n", strings.ReplaceAll(dir, " ", `\040`), kind)
}

// mountRun returns a run with a fake agent and a fake host, and an empty directory.
func mountRun(t *testing.T, f *fake) (*run, *sham, string) {
	t.Helper()
	r, s := with(t, f), &sham{}
	r.host = s.host()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return r, s, dir
}

// claims makes the fake agent accept a claim, and returns a pointer to the last request. For each
// request, it checks that the descriptor in the request refers to the directory.
func claims(t *testing.T, f *fake, s *sham, volume, alloc string) *api.ClaimRequest {
	t.Helper()
	got := new(api.ClaimRequest)
	f.on["PUT /v1/volumes/"+volume+"/claims/"+alloc] = func(r *http.Request) (any, error) {
		*got = api.ClaimRequest{}
		if err := json.NewDecoder(r.Body).Decode(got); err != nil {
			return nil, err
		}
		if got.AtFD != nil {
			open, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", got.Owner.PID, *got.AtFD))
			if err != nil || open != got.At {
				t.Errorf("the descriptor is open on %q, not %q: %v", open, got.At, err)
			}
		}
		s.mu.Lock()
		if !strings.Contains(s.table, " "+strings.ReplaceAll(got.At, " ", `\040`)+" ") {
			s.mounts(got.At, "ext4")
		}
		s.mu.Unlock()
		c := taken(volume, alloc, got.At)
		c.At, c.Target = got.At, "/target"
		return c, nil
	}
	return got
}

func TestMount(t *testing.T) {
	f := world()
	r, s, dir := mountRun(t, f)
	alloc := mount.UnitName(dir)
	got := claims(t, f, s, "data", alloc)
	expect(t, r.volctl("mount", "data", dir), 0, fmt.Sprintf("mounted volume \"data\" at %s for alloc %q\n", dir, alloc), "")
	if got.At != dir || (got.AtFD == nil) == (os.Geteuid() == 0) || got.Owner.Kind != api.OwnerMount || got.Owner.PID != os.Getpid() || got.AtWritable || got.ReadOnly {
		t.Errorf("asked for %+v", got)
	}
	if want := "remember /target " + dir + " helper=csi"; strings.Join(s.calls, "\n") != want {
		t.Errorf("calls: %q", s.calls)
	}

	// The second command sends no descriptor. The agent decides whether the options match.
	f.volumes[0].Claims = append(f.volumes[0].Claims, api.Claim{Volume: "data", Alloc: alloc, At: dir, Wanted: true})
	s.utab = "SRC=/dev/sdb TARGET=" + dir + " ROOT=/vol OPTS=helper=csi,_netdev\n"
	expect(t, r.volctl("mount", "data", dir), 0, fmt.Sprintf("volume \"data\" is mounted at %s already, for alloc %q\n", dir, alloc), "")
	if got.AtFD != nil || len(s.calls) != 1 {
		t.Errorf("asked for %+v, calls %q", got, s.calls)
	}

	// libmount's table has an entry for this directory, but the entry is for a different mount.
	s.table, s.utab = "", "SRC=/dev/sdc TARGET="+dir+" ROOT=/vol OPTS=helper=csi\n"
	got = claims(t, f, s, "data[3]", "x")
	res := r.volctl("mount", "data", dir, "-o", "ro,_netdev,per_alloc=3,alloc=x", "-o", "nosuid", "--output", "json")
	var claim api.Claim
	if err := json.Unmarshal([]byte(res.stdout), &claim); err != nil || res.code != 0 || claim.At != dir {
		t.Errorf("%+v, %v", res, err)
	}
	if !got.ReadOnly || !slices.Equal(got.AtFlags, []string{"nosuid"}) {
		t.Errorf("asked for %+v", got)
	}
	if want := "remember /target " + dir + " helper=csi,_netdev"; s.calls[len(s.calls)-1] != want {
		t.Errorf("calls: %q", s.calls)
	}
	s.table = ""
	if err := os.Mkdir(dir+"/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	claims(t, f, s, "data", mount.UnitName(dir+"/sub"))
	expect(t, r.volctl("mount", "data", "sub"), 0, fmt.Sprintf("mounted volume \"data\" at %s/sub for alloc %q\n", dir, mount.UnitName(dir+"/sub")), "")
}

// TestMountPointRefused checks that volctl refuses an unsuitable mount point before it sends a
// request to the agent.
func TestMountPointRefused(t *testing.T) {
	f := world()
	r, s, dir := mountRun(t, f)
	for _, d := range []string{"empty", "full/entry", "real/below"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(dir+"/file", nil, 0o644), os.Symlink("real", dir+"/link"), os.Symlink("nowhere", dir+"/dangling")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		at, options string
		code        int
		want        string
	}{
		{"none", "", 3, "there is no " + dir + "/none\nhint: mkdir -p " + dir + "/none\n"},
		{"file/below", "", 2, "a part of it is not a directory\n"},
		{"link", "", 2, "a symbolic link on the way leads to " + dir + "/real\nhint: name " + dir + "/real instead\n"},
		{"link/below", "", 2, "a symbolic link on the way leads to " + dir + "/real/below\nhint: name " + dir + "/real/below instead\n"},
		{"dangling", "", 2, "a symbolic link on the way leads nowhere: "},
		{"file", "attachment_mode=file-system", 2, "it is not a directory\nhint: name a directory; "},
		{"empty", "attachment_mode=block-device", 2, "it is a directory\nhint: a block device needs a file as mount point"},
		{"full", "", 4, "it is not empty, and the mount would hide its content: \"entry\"\nhint: move it elsewhere, or mount over it with the option nonempty\n"},
		{"empty", "bogus", 2, "unknown mount option \"bogus\""},
	} {
		at := filepath.Join(dir, tt.at)
		expect(t, r.volctl("mount", "data", at, "-o", tt.options), tt.code, "", fmt.Sprintf("volctl: cannot mount volume \"data\" at %s: ", at))
		expect(t, r.volctl("mount", "data", at, "-o", tt.options), tt.code, "", tt.want)
	}
	expect(t, r.volctl("mount", "a/b", dir), 2, "", "cannot mount volume \"a/b\"")
	expect(t, r.volctl("mount", "data", ""), 2, "", "cannot mount volume \"data\"")
	expect(t, r.volctl("mount", "data", "/"+strings.Repeat("x", 200)), 2, "", "its path is too long for the name of an alloc\nhint: -o alloc=NAME\n")
	expectSent(t, f)

	claims(t, f, s, "data", "a")
	expect(t, r.volctl("mount", "data", dir+"/full", "-o", "alloc=a,nonempty", "-q"), 0, dir+"/full\n", "")
	expect(t, r.volctl("mount", "data", dir+"/file", "-o", "alloc=a,attachment_mode=block-device", "-q"), 0, dir+"/file\n", "")
	expect(t, r.volctl("mount", "data", dir+"/file", "-o", "alloc=a", "-q"), 4, "", "something else is mounted there already: ext4 on /dev/sdb\nhint: umount "+dir+"/file\n")

	// volctl must not read the contents of an autofs.
	s.table = "80 28 0:50 / " + dir + "/full rw,relatime - autofs systemd-1 rw\n"
	expect(t, r.volctl("mount", "data", dir+"/full", "-o", "alloc=a", "-q"), 0, dir+"/full\n", "")
}

func TestMountOverOthers(t *testing.T) {
	f := world()
	r, s, dir := mountRun(t, f)
	s.mounts(dir, "xfs")
	claims(t, f, s, "data", "mine")
	for _, tt := range []struct {
		claim api.Claim
		want  string
	}{
		{api.Claim{Volume: "other", Alloc: "mine", At: dir, Wanted: true}, "volume \"other\" is mounted there already, for alloc \"mine\"\nhint: volctl umount " + dir + "\n"},
		{api.Claim{Volume: "data", Alloc: "its", At: dir, Wanted: true}, "volume \"data\" is mounted there already, for alloc \"its\"\n"},
		{api.Claim{Volume: "other", Alloc: "its", At: dir}, "volume \"other\" is still mounted there, and is being detached\nhint: volctl wait --volume other --for free\n"},
		{api.Claim{Volume: "data", Alloc: "mine", At: dir + "x", Wanted: true}, "something else is mounted there already: xfs on /dev/sdb\n"},
	} {
		f.volumes[0].Claims = []api.Claim{tt.claim}
		expect(t, r.volctl("mount", "data", dir, "-o", "alloc=mine"), 4, "", tt.want)
	}
	f.on["PUT /v1/volumes/data/claims/mine"] = refuses(api.Error{Code: api.CodeRefused, Message: "with other options", Hint: "volctl volume detach"})
	f.volumes[0].Claims = []api.Claim{{Volume: "data", Alloc: "mine", At: dir, Wanted: true}}
	expect(t, r.volctl("mount", "data", dir, "-o", "alloc=mine,ro"), 4, "", "with other options\nhint: volctl volume detach\n")
}

// TestMountInterrupted checks the error if the user interrupts "volctl mount". The agent withdraws
// the claim.
func TestMountInterrupted(t *testing.T) {
	f := world()
	r, _, dir := mountRun(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	r.ctx = ctx
	f.on["PUT /v1/volumes/data/claims/a"] = func(r *http.Request) (any, error) {
		cancel()
		<-r.Context().Done()
		return nil, errors.New("nobody listens")
	}
	f.on["GET /v1/volumes/data/claims/a"] = refuses(api.Error{Code: api.CodeNotFound, Message: "no claim"})
	expect(t, r.volctl("mount", "data", dir, "-o", "alloc=a"), 1, "", "volctl: cannot mount volume \"data\" at "+dir+": it was interrupted, and the claim is withdrawn\n")
}

// TestMountTimeout checks that volctl returns the agent's answer before systemd's own timeout.
func TestMountTimeout(t *testing.T) {
	f := world()
	r, _, dir := mountRun(t, f)
	var wait time.Duration
	f.on["PUT /v1/volumes/data/claims/a"] = func(r *http.Request) (any, error) {
		wait, _ = time.ParseDuration(r.URL.Query().Get("wait"))
		return nil, &api.Error{Code: api.CodeTimeout, Message: "after 80s"}
	}
	expect(t, r.volctl("mount", "data", dir, "-o", "alloc=a"), 5, "", "after 80s")
	if wait > 80*time.Second || wait < 40*time.Second || command.ClaimTimeout+mount.Grace >= 90*time.Second {
		t.Errorf("it waits %s", wait)
	}
}
