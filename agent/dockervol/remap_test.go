package dockervol

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// fakeProc makes a fake /proc with one process. The process has the given open files, and the given
// files below its root directory.
func fakeProc(t *testing.T, pid int, open []string, root map[string]string) string {
	t.Helper()
	proc := t.TempDir()
	dir := filepath.Join(proc, fmt.Sprint(pid))
	must(t, os.MkdirAll(filepath.Join(dir, "fd"), 0o755))
	must(t, os.MkdirAll(filepath.Join(dir, "root/etc"), 0o755))
	for i, path := range open {
		must(t, os.Symlink(path, filepath.Join(dir, "fd", fmt.Sprint(i))))
	}
	for name, text := range root {
		must(t, os.WriteFile(filepath.Join(dir, "root", name), []byte(text), 0o644))
	}
	return proc
}

// TestRemappedRoot checks that the path of dockerd's data root reveals the ids of root in its
// containers. Both ids must begin a range in /etc/subuid and /etc/subgid.
func TestRemappedRoot(t *testing.T) {
	const (
		db   = "/var/lib/docker/200000.300000/volumes/metadata.db"
		uids = "# a comment\nsomebody:100000:65536\ndockremap:200000:65536\n"
		gids = "dockremap:300000:65536"
	)
	both := map[string]string{"etc/subuid": uids, "etc/subgid": gids}
	for name, tt := range map[string]struct {
		open []string
		root map[string]string
		want string
	}{
		"remapped":        {[]string{"/dev/null", "socket:[5]", "/var/lib/docker/200000.300000/network/files/local-kv.db", db}, both, "200000 300000"},
		"another parent":  {[]string{"/a b/200000.300000/volumes/metadata.db"}, both, "200000 300000"},
		"not remapped":    {[]string{"/var/lib/docker/volumes/metadata.db"}, both, " "},
		"no docker":       {[]string{"/dev/null"}, both, " "},
		"nothing open":    {nil, both, " "},
		"another file":    {[]string{"/var/lib/docker/200000.300000/volumes/metadata.db.old"}, both, " "},
		"a deleted file":  {[]string{db + " (deleted)"}, both, " "},
		"a version":       {[]string{"/srv/docker/24.0/volumes/metadata.db"}, both, " "},
		"the host's root": {[]string{"/srv/0.0/volumes/metadata.db"}, map[string]string{"etc/subuid": "a:0:1", "etc/subgid": "a:0:1"}, " "},
		"the last id":     {[]string{"/srv/4294967295.300000/volumes/metadata.db"}, map[string]string{"etc/subuid": "a:4294967295:1", "etc/subgid": gids}, " "},
		"a sign":          {[]string{"/srv/200000.+300000/volumes/metadata.db"}, map[string]string{"etc/subuid": uids, "etc/subgid": "a:+300000:1"}, " "},
		"no uid":          {[]string{"/srv/.300000/volumes/metadata.db"}, map[string]string{"etc/subuid": "a::1", "etc/subgid": gids}, " "},
		"three ids":       {[]string{"/srv/200000.300000.1/volumes/metadata.db"}, both, " "},
		"no ranges":       {[]string{db}, nil, " "},
		"no group ranges": {[]string{db}, map[string]string{"etc/subuid": uids}, " "},
		"within a range":  {[]string{"/var/lib/docker/200001.300000/volumes/metadata.db"}, both, " "},
		"a damaged range": {[]string{db}, map[string]string{"etc/subuid": "dockremap:200000\n", "etc/subgid": gids}, " "},
		"too long a file": {[]string{db}, map[string]string{"etc/subuid": uids + strings.Repeat("#", maxSubIDs), "etc/subgid": gids}, " "},
	} {
		uid, gid := remappedRoot(fakeProc(t, 5, tt.open, tt.root), 5)
		if got := uid + " " + gid; got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}

	proc := fakeProc(t, 5, []string{db}, both)
	var at sync.WaitGroup
	for range 50 { // compose creates volumes in parallel
		at.Go(func() {
			if uid, gid := remappedRoot(proc, 5); uid != "200000" || gid != "300000" {
				t.Errorf("beside others: %q, %q", uid, gid)
			}
		})
	}
	at.Wait()
	for _, pid := range []int{0, -1, 6} {
		if uid, gid := remappedRoot(proc, pid); uid+gid != "" {
			t.Errorf("process %d: %s:%s", pid, uid, gid)
		}
	}
	subuid := filepath.Join(proc, "5/root/etc/subuid")
	must(t, os.Remove(subuid))
	must(t, syscall.Mkfifo(subuid, 0o644)) // a read would block: the FIFO has no writer
	if uid, gid := remappedRoot(proc, 5); uid+gid != "" {
		t.Errorf("with a FIFO in place of the ranges: %s:%s", uid, gid)
	}
	if uid, gid := RemappedRoot(os.Getpid()); uid+gid != "" {
		t.Errorf("this process: %s:%s", uid, gid)
	}
}
