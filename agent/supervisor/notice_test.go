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

// wasRead is the message that is logged once for each applied change.
const wasRead = "the plugin files changed and were read"

// reads returns the number of applied changes.
func (b *bench) reads() int { return strings.Count(b.log.String(), wasRead) }

// awaitKnown waits until a plugin is known, or is no longer known if want is false.
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

// replace writes a plugin file as editors do: it writes a temporary file and renames it.
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

// TestFilesAreNoticed checks that new, changed and removed files are noticed without a reload.
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

	// Two changes wait, because volumes use the plugin.
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

// TestPluginDirectoryComesAndGoes checks that the agent watches the directory even if it is made,
// removed or moved.
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
	write("b") // now the directory itself is watched
	b.awaitKnown("b", true)

	// The directory is removed and made again.
	b.must(os.Remove(b.opts.PluginDir + "/a.yaml"))
	b.must(os.Remove(b.opts.PluginDir + "/b.yaml"))
	b.must(os.Remove(b.opts.PluginDir))
	b.must(os.Remove(b.dir + "/etc/deep"))
	b.awaitKnown("a", false)
	b.must(os.MkdirAll(b.opts.PluginDir, 0o700))
	write("c")
	b.awaitKnown("c", true)

	// The directory is moved away, and another takes its place.
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

// TestChangedBeforeTheWatch checks a change between the first reading of the files and the start of
// the watch. The agent must not miss that change. If nothing changes, the agent reads each file
// only once.
func TestChangedBeforeTheWatch(t *testing.T) {
	b := newBench(t)
	b.sup = supervisor.New(b.opts)
	b.must(b.sup.Load())
	b.file("a.yaml", fmt.Sprintf(nobody, "a"))
	b.run()
	b.awaitKnown("a", true)
	await(t, "the words about it", func() bool { return b.reads() == 1 })
}

// TestWatchAfterSIGHUP checks that after a Reload the agent watches the directory to which the path
// now leads.
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

// TestBurstOfWrites checks that the agent applies a hundred changes together.
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
	most := 1 + int(time.Since(begun)/(200*time.Millisecond)) // on a busy host, the burst may contain pauses
	b.awaitKnown("x99", true)
	await(t, "the words about it", func() bool { return b.reads() > 0 })
	if n := b.reads(); n > most {
		t.Errorf("100 changes within %s were taken in %d times, at most %d are due", time.Since(begun), n, most)
	}
}

// TestSwapFiles checks that other files in the directory have no effect. A second supervisor shows
// when a change would have been applied.
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
	b.file("b.yaml", fmt.Sprintf(nobody, "b")) // the directory was watched during the whole test
	b.awaitKnown("b", true)
}

// stalling is a log. Its writer blocks before it writes a message that contains the words.
type stalling struct {
	io.Writer
	words string
	once  sync.Once
	there chan struct{} // closed when the writer blocks
	until chan struct{}
}

func (s *stalling) Write(p []byte) (int, error) {
	if strings.Contains(string(p), s.words) {
		s.once.Do(func() { close(s.there); <-s.until })
	}
	return s.Writer.Write(p)
}

// TestOverflow checks that the agent reads the files after an overflow of the kernel's event queue.
func TestOverflow(t *testing.T) {
	b := newBench(t)
	log := &stalling{Writer: b.log, words: wasRead, there: make(chan struct{}), until: make(chan struct{})}
	b.opts.Logger = hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Trace})
	var limit int
	raw, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	b.must(err)
	_, err = fmt.Sscan(string(raw), &limit)
	b.must(err)
	if limit > 100000 { // the kernel's default is 16384
		t.Skipf("somebody raised fs.inotify.max_queued_events to %d: as many events take too long to make", limit)
	}
	b.start()
	b.watching()
	b.file("a.yaml", fmt.Sprintf(nobody, "a"))
	<-log.there // the agent reads no events from now on
	// Each rename causes two events, and none of them is about a plugin file. Events that the agent
	// has already read no longer fill the kernel's queue.
	b.file(".x", "")
	names := [2]string{filepath.Join(b.opts.PluginDir, ".x"), filepath.Join(b.opts.PluginDir, ".y")}
	for i := range limit/2 + 5000 {
		b.must(os.Rename(names[i%2], names[1-i%2]))
	}
	b.file("b.yaml", fmt.Sprintf(nobody, "b")) // the kernel drops the event of this file
	close(log.until)
	b.awaitKnown("b", true)
	if !strings.Contains(b.log.String(), "may have been missed") {
		t.Error("there was no overflow")
	}
}

const envLimit = "FAKE_INOTIFY_LIMIT"

// TestInotifyLimits checks an agent that cannot watch any directory. The agent logs this once,
// keeps running, and tries again at the next Reload. The limits apply to the test's own user
// namespace.
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
