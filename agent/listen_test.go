package agent

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// passed is a socket as systemd opens and passes it: it keeps one descriptor itself.
func passed(t *testing.T, path string) (systemd *net.UnixListener, s *sockets) {
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
	defer f.Close() // the listener has its own
	l, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	return systemd, &sockets{left: []*net.UnixListener{l.(*net.UnixListener)}}
}

func connects(t *testing.T, path string) bool {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}

// TestSocketOfSystemd: it is used under whatever name the configuration has for its
// path, is opened to the group, and outlives the agent.
func TestSocketOfSystemd(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "s"), filepath.Join(dir, "d")
	if err := os.Symlink(dir, other); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, dir + "/./s", other + "/s"} {
		systemd, s := passed(t, path)
		l, err := s.open(name, os.Getgid(), apiMode)
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

// TestSocketNotUsed: one that the configuration does not name, or whose file is gone,
// is told of and closed; the agent opens its own.
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
		l, err := s.open(wanted, os.Getgid(), apiMode)
		if err != nil || !connects(t, wanted) {
			t.Fatalf("%s: %v", what, err)
		}
		var log bytes.Buffer
		s.close(hclog.New(&hclog.LoggerOptions{Output: &log}))
		if !strings.Contains(log.String(), "systemctl restart volagent.socket") || !strings.Contains(log.String(), "socket="+path) || len(s.left) != 0 {
			t.Errorf("%s: the log says %q", what, &log)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
