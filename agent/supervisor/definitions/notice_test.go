package definitions

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// TestJudge checks the reaction to each kind of event.
func TestJudge(t *testing.T) {
	const dir = "/etc/volagent/plugins.d"
	for _, c := range []struct {
		at, name string
		op       fsnotify.Op
		want     meaning
	}{
		{dir, dir + "/a.yaml", fsnotify.Create, reread},
		{dir, dir + "/a.yaml", fsnotify.Write, reread},
		{dir, dir + "/a.yaml", fsnotify.Rename, reread},
		{dir, dir + "/a.yaml", fsnotify.Remove, reread},
		{dir, dir + "/a.yaml", fsnotify.Chmod, reread},
		{dir, dir + "/.a.yaml", fsnotify.Create, nothing},
		{dir, dir + "/.a.yaml.swp", fsnotify.Write, nothing},
		{dir, dir + "/a.yaml~", fsnotify.Rename, nothing},
		{dir, dir + "/#a.yaml#", fsnotify.Create, nothing},
		{dir, dir + "/a.yaml.swp", fsnotify.Remove, nothing},
		{dir, dir + "/4913", fsnotify.Create, nothing},
		{dir, dir + "/a.yml", fsnotify.Create, nothing},
		{dir, dir + "/README", fsnotify.Write, nothing},
		{dir, dir, fsnotify.Chmod, reread},
		{dir, dir, fsnotify.Remove, relook},
		{dir, dir, fsnotify.Rename, relook},
		{"/etc/volagent", dir, fsnotify.Create, relook},
		{"/etc/volagent", dir, fsnotify.Chmod, nothing},
		{"/etc/volagent", "/etc/volagent/x.yaml", fsnotify.Create, nothing},
		{"/etc/volagent", dir + "x", fsnotify.Create, nothing},
		{"/etc/volagent", "/etc/volagent", fsnotify.Remove, relook},
		{"/etc/volagent", "/etc/volagent", fsnotify.Chmod, nothing},
		{"/etc", "/etc/volagent", fsnotify.Create, relook},
		{"/etc", "/etc/vol", fsnotify.Create, nothing},
		{"/", "//etc", fsnotify.Create, relook},
		{"/", "//usr", fsnotify.Create, nothing},
	} {
		if got := judge(fsnotify.Event{Name: c.name, Op: c.op}, c.at, dir); got != c.want {
			t.Errorf("%s of %s while %s is watched means %d, want %d", c.op, c.name, c.at, got, c.want)
		}
	}
}

// TestBurst checks that changes are applied when no more changes come, or after atMost at the
// latest.
func TestBurst(t *testing.T) {
	var b burst
	if !b.due().IsZero() {
		t.Errorf("nothing happened, and something is due at %s", b.due())
	}
	start := time.Unix(1000, 0)
	for _, c := range []struct{ at, due time.Duration }{
		{0, quietFor},
		{quietFor / 2, quietFor * 3 / 2},
		{atMost - quietFor - 1, atMost - 1},
		{atMost - quietFor/2, atMost},
		{atMost, atMost},
	} {
		b.add(start.Add(c.at))
		if got := b.due().Sub(start); got != c.due {
			t.Errorf("with a change at %s they are due at %s, want %s", c.at, got, c.due)
		}
	}
}

// TestNearest checks that nearest returns only directories.
func TestNearest(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		dir: dir, dir + "/none": dir, dir + "/none/of/it": dir, dir + "/file": dir, dir + "/file/below": dir, "/no-such-dir/x": "/", "/": "/",
	} {
		if got := nearest(path); got != want {
			t.Errorf("nearest to %s is %s, want %s", path, got, want)
		}
	}
}

// TestFollowMissesNothing checks that follow finds a directory that is made while follow searches
// its parents.
func TestFollowMissesNothing(t *testing.T) {
	root := t.TempDir()
	for i := range 100 {
		w, err := fsnotify.NewWatcher()
		if err != nil {
			t.Fatal(err)
		}
		n := &noticer{w: w, dir: filepath.Join(root, strconv.Itoa(i), "a", "b", "c")}
		made := make(chan error, 1)
		go func() { made <- os.MkdirAll(n.dir, 0o700) }()
		err = n.follow()
		timeout := time.After(60 * time.Second)
		for n.at != n.dir && err == nil {
			select {
			case ev := <-w.Events:
				err = n.see(ev)
			case err = <-w.Errors:
			case <-timeout:
				err = errors.New("nothing tells of the directory below")
			}
		}
		if err := errors.Join(err, <-made, w.Close()); err != nil {
			t.Fatalf("round %d, while %s is watched: %v", i, n.at, err)
		}
	}
}
