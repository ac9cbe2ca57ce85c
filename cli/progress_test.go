package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

// screen collects the text that a program writes to a terminal.
type screen struct {
	mu   sync.Mutex
	text strings.Builder
	more chan struct{}
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(b)
	close(s.more)
	s.more = make(chan struct{})
	return len(b), nil
}

// await waits until the program has written a text. It returns false if ctx ends first.
func (s *screen) await(ctx context.Context, text string) bool {
	for {
		s.mu.Lock()
		found, more := strings.Contains(s.text.String(), text), s.more
		s.mu.Unlock()
		if found {
			return true
		}
		select {
		case <-more:
		case <-ctx.Done():
			return false
		}
	}
}

// terminal opens a pseudoterminal with the given width.
func terminal(t *testing.T, wide uint16) (*os.File, *screen) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no pseudoterminal is available: %v", err)
	}
	unlocked := 0
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, unlocked)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: wide})
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{more: make(chan struct{})}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(s, master) // Copy returns an error when the terminal is closed
	}()
	t.Cleanup(func() {
		_ = tty.Close()
		<-read
		_ = master.Close()
	})
	return tty, s
}

// TestProgressOnATerminal checks that the progress display is a single line on stderr. volctl must
// erase this line before it prints the result.
func TestProgressOnATerminal(t *testing.T) {
	tty, seen := terminal(t, 60)
	f := world()
	f.volumes = append(f.volumes, api.Volume{Spec: api.VolumeSpec{ID: "new", PluginID: "ebs"}, Attempt: &api.Attempt{Step: "CreateVolume", Running: true}})
	f.on["POST /v1/volumes/new/create"] = func(r *http.Request) (any, error) {
		if !seen.await(r.Context(), "\r\x1b[Kcreating volume \"new\"  0s  CreateVolume") {
			return nil, &api.Error{Code: api.CodeFailed, Message: "nothing was displayed"}
		}
		return nil, &api.Error{Code: api.CodeRefused, Message: "no more room"}
	}
	r := with(t, f)
	code := Run(r.ctx, Env{Env: command.Env{
		Args: []string{"volume", "create", "new", "--plugin", "ebs", "--socket", r.socket}, Stdout: tty, Stderr: tty,
		StderrColumns: func() int { return output.Columns(tty) }, Now: func() time.Time { return now },
		Getenv: func(string) string { return "" },
		Pause:  pauses(2),
	}})
	if code != exitRefused || !seen.await(t.Context(), "\r\x1b[Kvolctl: cannot create volume \"new\": no more room") {
		t.Errorf("exit %d, the terminal shows %q", code, seen.text.String())
	}
	if got := output.Columns(tty); got != 60 {
		t.Errorf("a terminal of 60 columns counts as %d", got)
	}
	pipe, _, err := os.Pipe()
	if err != nil || output.Columns(pipe) != 0 {
		t.Errorf("a pipe has %d columns, %v", output.Columns(pipe), err)
	}
}

// TestClaimShowsHowManyFiles checks the progress of a claim without a terminal. volctl must show
// progress only with --recursive, because a change of the owner of all files can take long.
func TestClaimShowsHowManyFiles(t *testing.T) {
	f := world()
	looked := make(chan struct{})
	var asked atomic.Int32
	f.on["GET /v1/volumes/data"] = func(*http.Request) (any, error) {
		n := asked.Add(1)
		if n == 3 {
			close(looked) // the display has shown the second answer
		}
		return api.Volume{Spec: api.VolumeSpec{ID: "data", PluginID: "ebs"}, Attempt: &api.Attempt{Step: "own", Running: true, Progress: fmt.Sprintf("%d files", 1000*n)}}, nil
	}
	f.on["PUT /v1/volumes/data/claims/a"] = func(r *http.Request) (any, error) {
		select {
		case <-looked:
		case <-r.Context().Done():
		}
		return api.Claim{Volume: "data", Alloc: "a", State: api.ClaimMounted, Path: "/x"}, nil
	}
	r := with(t, f)
	r.looks = 3
	res := r.volctl("volume", "claim", "data", "--alloc", "a", "--uid", "7", "--recursive")
	if line := regexp.MustCompile(`(?m)^claiming volume "data": own: [12]000 files$`); res.code != 0 || res.stdout != "/x\n" || !line.MatchString(res.stderr) {
		t.Errorf("got %+v", res)
	}
	r.looks = 0
	if res := r.volctl("volume", "claim", "data", "--alloc", "a", "--uid", "7"); res.code != 0 || res.stderr != "" {
		t.Errorf("of the root alone: %+v", res)
	}
}

// TestDetachShowsHolder checks the progress of a detach that waits. On a terminal, volctl must show
// the process that blocks the unmount, and erase the line at the end. Without a terminal, it must
// show nothing.
func TestDetachShowsHolder(t *testing.T) {
	tty, seen := terminal(t, 120)
	f := world()
	busy := &api.Attempt{Step: "NodeUnpublishVolume", Code: "Internal", Message: "umount: target is busy", HeldBy: []string{"pid 4711 rsync (backup.service), cwd", "pid 5 sh"}}
	f.on["GET /v1/volumes/data"] = func(*http.Request) (any, error) {
		return api.Volume{Spec: api.VolumeSpec{ID: "data", PluginID: "ebs"}, Attempt: busy}, nil
	}
	f.on["DELETE /v1/volumes/data/claims/a"] = func(r *http.Request) (any, error) {
		if !seen.await(r.Context(), "detaching volume \"data\"  0s  NodeUnpublishVolume is held up by pid 4711 rsync (backup.service), cwd and 1 more") {
			return nil, &api.Error{Code: api.CodeFailed, Message: "nothing was displayed"}
		}
		return nil, &api.Error{Code: api.CodeTimeout, Message: "still busy", Hint: "systemctl stop backup.service"}
	}
	r := with(t, f)
	code := Run(r.ctx, Env{Env: command.Env{
		Args: []string{"volume", "detach", "data", "a", "--socket", r.socket}, Stdout: tty, Stderr: tty,
		StderrColumns: func() int { return output.Columns(tty) }, Now: func() time.Time { return now },
		Getenv: func(string) string { return "" },
		Pause:  pauses(2),
	}})
	if code != exitTimeout || !seen.await(t.Context(), "\r\x1b[Kvolctl: cannot detach volume \"data\" from alloc \"a\": still busy") {
		t.Errorf("exit %d, the terminal shows %q", code, seen.text.String())
	}
	f.on["DELETE /v1/volumes/data/claims/a"] = answers(api.Done{})
	r.looks = 3
	if res := r.volctl("volume", "detach", "data", "a"); res.code != 0 || res.stderr != "" {
		t.Errorf("without a terminal: %+v", res)
	}
}
