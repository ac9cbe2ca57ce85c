package listen

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/peer"
)

// passed simulates a socket that systemd has opened and passed to the agent. It returns systemd's
// descriptor and the agent's sockets.
func passed(t *testing.T, path string) (systemd *net.UnixListener, s *Inherited) {
	t.Helper()
	systemd, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	systemd.SetUnlinkOnClose(false)
	t.Cleanup(func() { _ = systemd.Close() })
	f, err := systemd.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() // FileListener has duplicated the descriptor
	l, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	return systemd, &Inherited{left: []*net.UnixListener{l.(*net.UnixListener)}}
}

func connects(t *testing.T, path string) bool {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}

// TestSocketOfSystemd checks that Open finds systemd's socket under different spellings of its path
// and sets the socket's mode. After the agent closes the socket, clients must still be able to
// connect.
func TestSocketOfSystemd(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "s"), filepath.Join(dir, "d")
	if err := os.Symlink(dir, other); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, dir + "/./s", other + "/s"} {
		systemd, s := passed(t, path)
		l, err := s.Open(name, os.Getgid(), 0o660)
		if err != nil || l.Addr().String() != path || len(s.left) != 0 {
			t.Fatalf("%s: %v, left %v", name, err, s.left)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o660 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if !connects(t, path) {
			t.Errorf("%s: nobody can connect any more", name)
		}
		_ = systemd.Close()
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}

// TestSocketNotUsed passes a socket that the agent cannot use, because the agent's path is
// different or the socket file was removed. The agent must open its own socket, and log and close
// the other one.
func TestSocketNotUsed(t *testing.T) {
	for what, gone := range map[string]bool{"another path": false, "its file is gone": true} {
		dir := t.TempDir()
		path, wanted := filepath.Join(dir, "s"), filepath.Join(dir, "agent")
		_, s := passed(t, path)
		if gone {
			wanted = path
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		l, err := s.Open(wanted, os.Getgid(), 0o660)
		if err != nil || !connects(t, wanted) {
			t.Fatalf("%s: %v", what, err)
		}
		var log bytes.Buffer
		s.Close(hclog.New(&hclog.LoggerOptions{Output: &log}))
		if !strings.Contains(log.String(), "systemctl restart volagent.socket") || !strings.Contains(log.String(), "socket="+path) || len(s.left) != 0 {
			t.Errorf("%s: the log says %q", what, &log)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestListen checks that the socket file appears at its path with the correct owner and mode. The
// umask of the process must not change, and no temporary files may remain. Close must remove the
// socket file, unless another socket file has replaced it.
func TestListen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s.sock")
	left := filepath.Join(dir, ".s.sock.123")
	if err := errors.Join(os.Mkdir(left, 0o700), os.WriteFile(filepath.Join(left, "s"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	umask := func() string {
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Error(err)
		}
		_, after, _ := strings.Cut(string(status), "Umask:")
		line, _, _ := strings.Cut(after, "\n")
		return line
	}
	before, done, changed := umask(), make(chan struct{}), make(chan string, 1)
	go func() {
		defer close(changed)
		for {
			select {
			case <-done:
				return
			default:
			}
			if now := umask(); now != before {
				changed <- now
				return
			}
		}
	}()
	for range 300 {
		l, err := listen(path, os.Getgid(), 0o640)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o640 || !connects(t, path) {
			t.Fatalf("%v, %v", info, err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	if now, is := <-changed; is {
		t.Errorf("the umask was%s, and%s for a while", before, now)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) > 0 {
		t.Errorf("left: %v, %v", names, err)
	}

	l, err := listen(path, os.Getgid(), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600), l.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("a file that took the socket's place is gone: %v", err)
	}

	// A path of the maximum length works, although the path of the temporary socket is longer.
	long, err := os.MkdirTemp("/tmp", "l") //nolint:usetesting // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(long) }()
	long = filepath.Join(long, strings.Repeat("x", MaxPath-len(long)-1))
	l, err = listen(long, os.Getgid(), 0o600)
	if err != nil || !connects(t, long) {
		t.Fatalf("a path of %d bytes: %v", len(long), err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestAllowed(t *testing.T) {
	for name, tt := range map[string]struct {
		uid, gid uint32
		groups   []int
		known    bool
		want     bool
	}{
		"root":             {0, 0, nil, true, true},
		"a member":         {1000, 1000, []int{4, 990}, true, true},
		"the main group":   {1000, 990, nil, true, true},
		"another":          {1000, 1000, []int{4}, true, false},
		"not told, so not": {0, 0, nil, false, false},
	} {
		p := caller(tt.uid, tt.gid, tt.groups, tt.known)
		if got := Allowed(990)(p); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func caller(uid, gid uint32, groups []int, known bool) peer.Peer {
	return peer.Peer{UID: uid, GID: gid, Groups: groups, Known: known}
}
