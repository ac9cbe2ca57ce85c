package supervisor_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr/volume"
)

// wasRead is the message that the agent logs once each time it has read changed plugin files.
const wasRead = "the plugin files changed and were read"

// reads returns how many times the agent has read changed plugin files.
func (b *bench) reads() int { return strings.Count(b.log.String(), wasRead) }

// awaitKnown waits until the agent knows a plugin, or, if want is false, no longer knows it.
func (b *bench) awaitKnown(id string, want bool) {
	b.t.Helper()
	await(b.t, fmt.Sprintf("plugin %q: known %v", id, want), func() bool {
		_, err := b.sup.Status(id)
		if err != nil && !errors.Is(err, volume.ErrNotFound) {
			b.t.Fatal(err)
		}
		return (err == nil) == want
	})
}

// replace writes a plugin file as an editor does: it writes a temporary file and renames it.
func (b *bench) replace(name, content string) {
	b.t.Helper()
	b.file("."+name+".new", content)
	b.must(os.Rename(filepath.Join(b.opts.PluginDir, "."+name+".new"), filepath.Join(b.opts.PluginDir, name)))
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// watching waits until the agent watches the plugin files.
func (b *bench) watching() {
	b.t.Helper()
	await(b.t, "the watch", func() bool { return inotifies(b.t) == 1 })
}

// inotifies returns the number of directories that this process watches.
func inotifies(t *testing.T) (n int) {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err != nil || to != "anon_inode:inotify" {
			continue
		}
		info, err := os.ReadFile("/proc/self/fdinfo/" + filepath.Base(fd))
		if err != nil {
			t.Fatal(err)
		}
		n += bytes.Count(info, []byte("inotify wd:"))
	}
	return n
}

const nobody = "id: %s\nsocket: /no/such\n"

// TestFilesAreNoticed checks that the agent notices new, changed and removed files without a
// reload.
func TestFilesAreNoticed(t *testing.T) {
	b := newBench(t)
	b.set("env", "")
	b.start()
	b.watching()
	b.file("fake.yaml", b.fakeFile("    V: one\n", ""))
	first := b.await("fake", supervisor.Ready)
	if !strings.Contains(b.fake.text("env", ""), "V=one") {
		t.Error("it has not what its file says")
	}

	// Two changed files must wait while volumes use the plugin.
	b.inUse.Store(true)
	b.replace("fake.yaml", b.fakeFile("    V: two\n", ""))
	st := b.awaitThat("fake", "pending", func(st supervisor.Status) bool { return strings.Contains(st.Pending, "its file changed") })
	if st.PID != first.PID {
		t.Errorf("it was stopped under a volume: %+v", st)
	}
	b.file("fake.yaml", "id: [\n")
	b.awaitThat("fake", "said to be wrong", func(st supervisor.Status) bool { return strings.Contains(st.Pending, "its file cannot be used") })
	b.inUse.Store(false)
	b.replace("fake.yaml", b.fakeFile("    V: three\n", ""))
	b.awaitThat("fake", "changed", func(st supervisor.Status) bool {
		return st.State == supervisor.Ready && st.Pending == "" && st.PID != first.PID
	})
	if !strings.Contains(b.fake.text("env", ""), "V=three") {
		t.Error("it has not what its file says now")
	}
	b.must(os.Remove(filepath.Join(b.opts.PluginDir, "fake.yaml")))
	b.awaitKnown("fake", false)

	b.stop()
	if n := inotifies(t); n != 0 {
		t.Errorf("%d directories are watched after the end", n)
	}
}

// TestPluginDirectoryComesAndGoes checks that the agent notices files in the plugin directory, even
// if the directory is made, removed or moved while the agent runs.
func TestPluginDirectoryComesAndGoes(t *testing.T) {
	b := newBench(t)
	b.opts.PluginDir = b.dir + "/etc/deep/plugins.d"
	write := func(id string) {
		t.Helper()
		b.file("deep/plugins.d/"+id+".yaml", fmt.Sprintf(nobody, id))
	}
	b.start()
	b.watching()
	b.must(os.MkdirAll(b.opts.PluginDir, 0o700))
	write("a")
	b.awaitKnown("a", true)
	write("b") // now the agent watches the directory itself
	b.awaitKnown("b", true)

	// Remove the directory and make it again.
	b.must(os.Remove(b.opts.PluginDir + "/a.yaml"))
	b.must(os.Remove(b.opts.PluginDir + "/b.yaml"))
	b.must(os.Remove(b.opts.PluginDir))
	b.must(os.Remove(b.dir + "/etc/deep"))
	b.awaitKnown("a", false)
	b.must(os.MkdirAll(b.opts.PluginDir, 0o700))
	write("c")
	b.awaitKnown("c", true)

	// Move the directory away, and move another directory to its path.
	b.must(os.Rename(b.opts.PluginDir, b.dir+"/etc/old"))
	b.awaitKnown("c", false)
	b.must(os.Mkdir(b.dir+"/etc/new", 0o700))
	b.must(os.WriteFile(b.dir+"/etc/new/d.yaml", fmt.Appendf(nil, nobody, "d"), 0o600))
	b.must(os.Rename(b.dir+"/etc/new", b.opts.PluginDir))
	b.awaitKnown("d", true)
	write("e")
	b.awaitKnown("e", true)
	if n := inotifies(t); n != 1 {
		t.Errorf("%d directories are watched", n)
	}
}

// TestChangedBeforeTheWatch checks a change that is made after the first reading of the files and
// before the watch begins. The agent must not miss it. If nothing changes, the agent must read each
// file only once.
func TestChangedBeforeTheWatch(t *testing.T) {
	b := newBench(t)
	b.sup = supervisor.New(b.opts)
	b.must(b.sup.Load())
	b.file("a.yaml", fmt.Sprintf(nobody, "a"))
	b.run()
	b.awaitKnown("a", true)
	await(t, "the words about it", func() bool { return b.reads() == 1 })
}

// TestWatchAfterSIGHUP checks a link that leads to another directory. After a Reload, the agent
// must watch the new directory.
func TestWatchAfterSIGHUP(t *testing.T) {
	b := newBench(t)
	b.opts.PluginDir = b.dir + "/link"
	b.must(os.Mkdir(b.dir+"/before", 0o700))
	b.must(os.Symlink("before", b.opts.PluginDir))
	b.start()
	b.watching()
	b.must(os.Symlink("etc", b.dir+"/link.new"))
	b.must(os.Rename(b.dir+"/link.new", b.opts.PluginDir))
	b.file("a.yaml", fmt.Sprintf(nobody, "a"))
	b.reload()
	b.awaitKnown("a", true)
	b.file("b.yaml", fmt.Sprintf(nobody, "b"))
	b.awaitKnown("b", true)
}

// TestBurstOfWrites checks that the agent applies a hundred quick changes together.
func TestBurstOfWrites(t *testing.T) {
	b := newBench(t)
	b.start()
	b.watching()
	begun := time.Now()
	for i := range 100 {
		if i%2 == 0 {
			b.file("x.yaml", fmt.Sprintf(nobody, fmt.Sprint("x", i)))
		} else {
			b.replace("x.yaml", fmt.Sprintf(nobody, fmt.Sprint("x", i)))
		}
	}
	// on a busy host, the changes may not be quick enough to be one burst
	most := 1 + int(time.Since(begun)/(200*time.Millisecond))
	b.awaitKnown("x99", true)
	await(t, "the words about it", func() bool { return b.reads() > 0 })
	if n := b.reads(); n > most {
		t.Errorf("100 changes within %s were taken in %d times, at most %d are due", time.Since(begun), n, most)
	}
}

// TestSwapFiles checks that files that are not plugin files have no effect. A second supervisor,
// which gets a plugin file, shows when the first one would have read its files.
func TestSwapFiles(t *testing.T) {
	b, other := newBench(t), newBench(t)
	b.file("a.yaml", fmt.Sprintf(nobody, "a"))
	b.start()
	b.watching()
	other.start()
	await(t, "both watches", func() bool { return inotifies(t) == 2 })
	for _, name := range []string{".a.yaml.swp", ".a.yaml", "a.yaml~", "#a.yaml#", "4913", "a.yaml.tmp", "README"} {
		b.file(name, "x")
		b.file(name, "y")
		b.must(os.Remove(filepath.Join(b.opts.PluginDir, name)))
	}
	other.file("x.yaml", fmt.Sprintf(nobody, "x"))
	other.awaitKnown("x", true)
	if n := b.reads(); n != 0 {
		t.Errorf("the plugin files were read %d times because of files that are none", n)
	}
	b.file("b.yaml", fmt.Sprintf(nobody, "b")) // the agent must still be watching the directory
	b.awaitKnown("b", true)
}

// stalling is a log. It blocks when a message that contains the given words is written.
type stalling struct {
	io.Writer
	words string
	once  sync.Once
	there chan struct{} // closed when the log blocks
	until chan struct{}
}

func (s *stalling) Write(p []byte) (int, error) {
	if strings.Contains(string(p), s.words) {
		s.once.Do(func() { close(s.there); <-s.until })
	}
	return s.Writer.Write(p)
}

// TestOverflow checks that the agent reads the plugin files again after the kernel's event queue
// has overflowed.
func TestOverflow(t *testing.T) {
	b := newBench(t)
	log := &stalling{Writer: b.log, words: wasRead, there: make(chan struct{}), until: make(chan struct{})}
	b.opts.Logger = hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Trace})
	var limit int
	raw, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	b.must(err)
	_, err = fmt.Sscan(string(raw), &limit)
	b.must(err)
	if limit > 100000 { // the kernel's default is 16384 events
		t.Skipf("somebody raised fs.inotify.max_queued_events to %d: as many events take too long to make", limit)
	}
	b.start()
	b.watching()
	b.file("a.yaml", fmt.Sprintf(nobody, "a"))
	<-log.there // from now on the log blocks the agent, so it reads no events
	// Each rename causes two events, none of them about a plugin file. The agent may have read some
	// events already, so make more than the queue can hold.
	b.file(".x", "")
	names := [2]string{filepath.Join(b.opts.PluginDir, ".x"), filepath.Join(b.opts.PluginDir, ".y")}
	for i := range limit/2 + 5000 {
		b.must(os.Rename(names[i%2], names[1-i%2]))
	}
	// the queue is full, so the kernel drops the event of this file
	b.file("b.yaml", fmt.Sprintf(nobody, "b"))
	close(log.until)
	b.awaitKnown("b", true)
	if !strings.Contains(b.log.String(), "may have been missed") {
		t.Error("there was no overflow")
	}
}

const envLimit = "FAKE_INOTIFY_LIMIT"

// TestInotifyLimits checks an agent that cannot watch any directory because of the kernel's limits.
// The agent must log this once, keep running, and try again at the next Reload. The limits apply
// only in the user namespace of the test.
func TestInotifyLimits(t *testing.T) {
	limit := os.Getenv(envLimit)
	if limit == "" {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		for _, limit := range []string{"max_inotify_instances", "max_inotify_watches"} {
			cmd := exec.Command(exe, "-test.run=^TestInotifyLimits$", "-test.count=1")
			cmd.Env = append(os.Environ(), envLimit+"="+limit)
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWUSER,
				UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", limit, err, out)
			}
		}
		return
	}
	b := newBench(t)
	set := func(n string) {
		t.Helper()
		b.must(os.WriteFile("/proc/sys/user/"+limit, []byte(n), 0))
	}
	set("0")
	b.file("a.yaml", fmt.Sprintf(nobody, "a"))
	b.start()
	const words = "cannot watch the plugin files; changes are read only on SIGHUP (systemctl reload volagent)"
	said := func() int { return strings.Count(b.log.String(), words) }
	await(t, "the words", func() bool { return said() > 0 })
	if why := "the limit fs.inotify." + strings.Replace(limit, "inotify", "user", 1); !strings.Contains(b.log.String(), why) {
		t.Errorf("it does not say %q:\n%s", why, b.log)
	}
	b.awaitKnown("a", true)
	b.file("b.yaml", fmt.Sprintf(nobody, "b"))
	b.reload()
	b.awaitKnown("b", true)
	await(t, "another try", func() bool { return strings.Contains(b.log.String(), "still not noticed") || said() > 1 })

	set("100")
	b.reload()
	b.watching()
	b.file("c.yaml", fmt.Sprintf(nobody, "c"))
	b.awaitKnown("c", true)
	if n := said(); n != 1 {
		t.Errorf("it was said %d times", n)
	}
}
