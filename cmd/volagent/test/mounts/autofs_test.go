package mounts_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// autofsDir is an environment variable that turns the test binary into an automount server for the
// directory that the variable names. Like an automount unit of systemd, the server makes each
// process that enters the directory wait for a mount. Only processes in the server's own process
// group do not wait.
const autofsDir = "VOLAGENT_TEST_AUTOFS"

// These constants describe the kernel's requests and the server's answers. See linux/auto_fs.h.
const (
	autofsReady   = 0x9360
	autofsPacket  = 304 // size of struct autofs_v5_packet on 64-bit systems, in bytes
	autofsTokenAt = 8
)

// serveAutofs serves the directory and prints "serving". For each request of the kernel it prints
// "asked FD", where FD is an open descriptor of the directory. It answers the request when it reads
// a line from its standard input.
func serveAutofs(dir string) int {
	err := func() error {
		var pipe [2]int
		if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
			return err
		}
		opts := fmt.Sprintf("fd=%d,pgrp=%d,minproto=5,maxproto=5,direct", pipe[1], unix.Getpgrp())
		if err := unix.Mount("volagent-test", dir, "autofs", 0, opts); err != nil {
			return err
		}
		root, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		fmt.Println("serving")
		requests, answers := os.NewFile(uintptr(pipe[0]), "requests"), bufio.NewReader(os.Stdin)
		for {
			packet := make([]byte, autofsPacket)
			if _, err := io.ReadFull(requests, packet); err != nil {
				return err
			}
			held, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			fmt.Println("asked", held)
			if _, err := answers.ReadString('\n'); err != nil {
				return nil //nolint:nilerr // the test is over
			}
			token := binary.NativeEndian.Uint32(packet[autofsTokenAt:])
			if err := unix.IoctlSetInt(root, autofsReady, int(token)); err != nil {
				return err
			}
			if err := unix.Close(held); err != nil {
				return err
			}
		}
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "autofs:", err)
		return 1
	}
	return 0
}

// automount is a directory on which a volume is mounted only when a process enters the directory.
type automount struct {
	t    *testing.T
	dir  string
	cmd  *exec.Cmd
	says *bufio.Reader
	tell io.WriteCloser
}

func newAutomount(t *testing.T, dir string) *automount {
	t.Helper()
	a := &automount{t: t, dir: dir, cmd: exec.Command("/proc/self/exe")}
	a.cmd.Env = append(os.Environ(), autofsDir+"="+dir)
	a.cmd.Stderr = os.Stderr
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := a.cmd.StdoutPipe()
	if err == nil {
		a.tell, err = a.cmd.StdinPipe()
	}
	if err == nil {
		err = a.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	a.says = bufio.NewReader(out)
	t.Cleanup(a.stop)
	if got := a.line(); got != "serving" {
		t.Fatalf("it says %q", got)
	}
	return a
}

func (a *automount) line() string {
	a.t.Helper()
	line, err := a.says.ReadString('\n')
	if err != nil {
		a.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// asked waits for the kernel's next request. It returns the directory, opened through the server's
// descriptor.
func (a *automount) asked() *os.File {
	a.t.Helper()
	fd, err := strconv.Atoi(strings.TrimPrefix(a.line(), "asked "))
	if err != nil {
		a.t.Fatal(err)
	}
	dir, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/%d", a.cmd.Process.Pid, fd), unix.O_PATH, 0)
	if err != nil {
		a.t.Fatal(err)
	}
	return dir
}

// answer makes the server tell the kernel that the directory is mounted.
func (a *automount) answer() {
	if _, err := io.WriteString(a.tell, "\n"); err != nil {
		a.t.Error(err)
	}
}

func (a *automount) stop() {
	_ = a.cmd.Process.Kill()
	_ = a.cmd.Wait() // Wait returns an error because the process was killed
	for syscall.Unmount(a.dir, syscall.MNT_DETACH) == nil {
	}
}

// TestAutomount mounts a volume on an autofs directory while a process waits for the mount. The
// agent must not enter the directory, because the agent would then wait too. The agent must unmount
// only its own mount, never the autofs mount. It must also remount the volume without a request.
func TestAutomount(t *testing.T) {
	h := harness.StartRecorded(t, "10m", func(c *csitest.Config) { c.Attach, c.Fuse = false, true })
	h.Register("data", "single-node-writer")
	at := h.Dir + "/at-data"
	h.Must(os.Mkdir(at, 0o755))
	auto := newAutomount(t, at)
	walk := func() (wait func()) {
		var out bytes.Buffer
		ls := exec.Command("ls", at+"/")
		ls.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		ls.Stdout, ls.Stderr = &out, &out
		h.Must(ls.Start())
		return func() {
			if err := ls.Wait(); err != nil || !strings.Contains(out.String(), "file") {
				t.Errorf("who walked there: %v, %s", err, out.String())
			}
		}
	}
	mount := func() {
		t.Helper()
		walked := walk()
		dir := auto.asked()
		fd := int(dir.Fd())
		for range 2 { // the second call finds the volume mounted
			if _, err := mountAt(h, "data", auto.cmd.Process.Pid, func(r *api.ClaimRequest) { r.AtFD = &fd }); err != nil {
				t.Fatal(err)
			}
		}
		h.Must(dir.Close())
		if line := lastLine(h, at); !strings.Contains(line, "fuse") {
			t.Errorf("mounted is %s", line)
		}
		target := h.Volctl("claim", "list", "-o", "go-template={{range .}}{{.target}}{{end}}")
		h.Must(os.WriteFile(target+"/file", nil, 0o644))
		auto.answer()
		walked()
	}
	mount()
	umount(h, at)
	h.AwaitFree("data")
	if line := lastLine(h, at); !strings.Contains(line, "autofs") {
		t.Errorf("after an unmount there is %s", line)
	}
	mount()
	h.Must(syscall.Kill(h.PluginPID("rec"), syscall.SIGKILL))
	h.Await("another mount", func() bool {
		return strings.Count(h.Volctl("events", "--volume", "data", "-n", "500"), "bound at "+at) >= 3
	})
	h.Volctl("wait", "--volume", "data", "--for", "mounted", "--timeout", "60s")
	h.Volctl("volume", "detach", "data", "--force")
	if line := lastLine(h, at); !strings.Contains(line, "autofs") {
		t.Errorf("after a detach there is %s", line)
	}
	if out := h.Volctl("events", "--volume", "data", "-n", "500"); strings.Contains(out, "no answer") || strings.Count(out, "owner-gone") != 1 {
		t.Errorf("somebody waited, or a claim was released too many times:\n%s", out)
	}
	log, err := os.ReadFile(h.Log.Name())
	h.Must(err)
	if bytes.Contains(log, []byte("no answer")) {
		t.Errorf("the agent waited:\n%s", log)
	}
}

// lastLine returns the line of the topmost mount on the given directory in the mount table.
func lastLine(h harness.Recorded, at string) (last string) {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	h.Must(err)
	for line := range strings.Lines(string(raw)) {
		if strings.Fields(line)[4] == at {
			last = line
		}
	}
	return last
}
