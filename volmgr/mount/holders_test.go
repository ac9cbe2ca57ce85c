package mount

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestHolders(t *testing.T) {
	dir := tempDir(t)
	at := mkdir(t, dir, "m")
	mountFS(t, "tmpfs", "t", at, 0, "")
	file := write(t, at+"/a b", "x")
	prog := at + "/prog"
	copyFile(t, "/proc/self/exe", prog)
	in := func(dir string) func(*exec.Cmd) { return func(c *exec.Cmd) { c.Dir = dir } }
	tests := []struct {
		name, child string
		change      func(*exec.Cmd)
		how, path   string
	}{
		{"cwd", "stay", in(mkdir(t, at, "d")), "cwd", at + "/d"},
		{"fd", "open " + file, nil, "open file", file},
		{"fd of the root", "open " + at, nil, "open file", at},
		{"program", "stay", func(c *exec.Cmd) { c.Path = prog }, "running program", prog},
		{"map", "map " + file, nil, "mapped file", file},
		{"namespace", "stay", func(c *exec.Cmd) {
			c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
		}, "mount namespace", at},
		// The process opened the file before it changed its namespace. The open file still keeps
		// the mount busy.
		{"fd from another namespace", "open " + file, func(c *exec.Cmd) {
			c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
			f, err := os.Open(file)
			check(t, err)
			t.Cleanup(func() { check(t, f.Close()) })
			c.ExtraFiles = []*os.File{f}
		}, "open file", file},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pid, stop := start(t, tt.child, tt.change)
			want := Holder{PID: pid, Command: "exe", Unit: newHost(t).unit(pid), How: tt.how, Path: tt.path}
			if tt.name == "program" {
				want.Command = "prog"
			}
			if got := newHost(t).Holders(at); !slices.Contains(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
			stop()
		})
	}
	for _, o := range newHost(t).Holders(at) {
		if o.PID != os.Getpid() {
			t.Errorf("nobody holds it: %v", o)
		}
	}
}

func TestHoldersAreOfThisMountAlone(t *testing.T) {
	dir := tempDir(t)
	at, same, near := mkdir(t, dir, "m"), mkdir(t, dir, "same"), mkdir(t, dir, "m-near")
	// The working directory of this process has the same path, but is another directory in another
	// namespace.
	start(t, "stay", func(c *exec.Cmd) {
		c.Dir = at
		c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	})
	mountFS(t, "tmpfs", "t", at, 0, "")
	bindAt(t, at, same)
	mountFS(t, "tmpfs", "t", near, 0, "")
	for _, d := range []string{same, near} {
		start(t, "open "+write(t, d+"/f", ""), func(c *exec.Cmd) { c.Dir = d })
	}
	for _, path := range []string{at, mkdir(t, dir, "plain"), dir + "/none"} {
		if got := newHost(t).Holders(path); len(got) > 0 {
			t.Errorf("%q is held by %v", path, got)
		}
	}
}

func TestHoldersInTheKernel(t *testing.T) {
	dir := tempDir(t)
	at := mkdir(t, dir, "m")
	mountFS(t, "tmpfs", "t", at, 0, "")
	mountFS(t, "tmpfs", "t", mkdir(t, at, "nested"), 0, "")
	loop(t, at, 1<<20)
	var got []string
	for _, o := range newHost(t).Holders(at) {
		got = append(got, o.How)
	}
	slices.Sort(got)
	if !slices.Equal(got, []string{"loop device", "mount"}) {
		t.Errorf("got %q", got)
	}
}

func TestHoldersAreLimited(t *testing.T) {
	at := mkdir(t, tempDir(t), "m")
	mountFS(t, "tmpfs", "t", at, 0, "")
	for i := range mostHolders + 5 {
		mountFS(t, "tmpfs", "t", mkdir(t, at, fmt.Sprint(i)), 0, "")
	}
	if n := len(newHost(t).Holders(at)); n != mostHolders {
		t.Errorf("%d holders", n)
	}
}

// TestHoldersOfTheHung checks that Holders returns in time for a mount that hangs.
func TestHoldersOfTheHung(t *testing.T) {
	at := mkdir(t, tempDir(t), "m")
	f := serveFuse(t, at, false)
	// This test does not use Cmd.Dir. A fork that waits for the file system of this process would
	// stop the threads that must answer the file system's requests.
	pid, stop := start(t, "enter "+at, nil)
	f.sleep()
	begin := time.Now()
	got := newHost(t).Holders(at)
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
	var how []string
	for _, o := range got {
		if o.PID == pid {
			how = append(how, o.How)
		}
	}
	if !slices.Equal(how, []string{"cwd", "open file"}) {
		t.Errorf("got %v", got)
	}
	if f.asked() {
		t.Error("the file system was asked")
	}
	f.wake()
	stop()
}

func TestHolderInWords(t *testing.T) {
	for want, o := range map[string]Holder{
		`mount "/a b"`:       {How: "mount", Path: "/a b"},
		`pid 7 sh, cwd "/m"`: {PID: 7, Command: "sh", How: "cwd", Path: "/m"},
		`pid 7 postgres (db.service), open file "/m/x"`: {PID: 7, Command: "postgres", Unit: "db.service", How: "open file", Path: "/m/x"},
		`pid 7 sh (session-1.scope), mount namespace`:   {PID: 7, Command: "sh", Unit: "session-1.scope", How: "mount namespace"},
	} {
		if got := o.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	check(t, err)
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	check(t, err)
	_, err = io.Copy(out, in)
	check(t, err)
	check(t, out.Close())
	if !strings.HasPrefix(to, "/") {
		t.Fatal("not absolute")
	}
}
