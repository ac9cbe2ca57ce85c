package cluster_test

import (
	"cmp"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/agent"
	"github.com/volagent/volagent/agent/fencehook"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/lab"
	"github.com/volagent/volagent/volmgr/csitest/san"
)

// fencing describes a cluster of three hosts, of which h1 is lost.
type fencing struct {
	driver san.Config
	plugin []string // further lines of the plugin file, such as "fence: detach"
	volume []string // further lines of the volume file
	access string   // the line of the volume file for the access modes; default: single-node-multi-writer

	// hook is the text of a fence hook of all hosts, without its first line. "POWER" in it is a directory
	// that the test and the hook share. With it, the time limits of hooks are short.
	hook string

	// hookOn is the only host with the hook. It is empty if all hosts have it.
	hookOn string

	// patient hosts give a hook more time than the test takes.
	patient bool

	smallDisks bool // each host has a small disk for its data directory
}

// start starts the hosts. The CSI node ids differ from the names of the hosts.
func (c fencing) start(t *testing.T) *loss {
	t.Helper()
	l := &loss{field: &field{t: t, san: lab.StartSAN(t)}}
	l.Lab = lab.New(t, 3, lab.WithEtcd(1), lab.Clustered())
	l.a, l.b, l.c = l.Hosts[0], l.Hosts[1], l.Hosts[2]
	hooks := l.b.Mkdir("fence.d")
	l.b.Mkdir("power")
	if c.hook != "" {
		text := "#!/bin/sh\n" + strings.ReplaceAll(c.hook, "POWER", l.power(""))
		l.b.Must(os.WriteFile(filepath.Join(hooks, "power"), []byte(text), 0o755))
	}

	self, err := os.Executable()
	l.b.Must(err)
	none := l.b.Mkdir("no-hooks.d")
	for _, h := range l.Hosts {
		if c.smallDisks {
			addSmallDisk(h)
		}
		h.Program, h.Wrapper = self, []string{"env", hastyAgent + "=" + hastyLimit(c.patient).String()}
		dir := hooks
		if c.hookOn != "" && c.hookOn != h.Name {
			dir = none
		}
		h.MoreArgs = append(h.MoreArgs, "--fence-dir", dir)
		addDriver(h.Host, l.san, "csi-"+h.Name, c.driver, c.plugin...)
		h.Start("san")
	}
	shareOn(l.b.Host, l.san, "db", append([]string{cmp.Or(c.access, mode("single-node-multi-writer"))}, c.volume...)...)
	return l
}

// hastyAgent is an environment variable that turns this test binary into an agent whose fence hooks have
// short time limits.
const hastyAgent = "VOLAGENT_TEST_HASTY"

// runHasty is the program of hastyAgent, whose value is the time limit of a hook.
func runHasty(limit string) int {
	within, err := time.ParseDuration(limit)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	limits := fencehook.Limits{Off: within, On: within, Status: 2 * time.Second, Settle: 2 * time.Second, Poll: 100 * time.Millisecond}
	return agent.Main(os.Args[1:], os.Stdout, os.Stderr, agent.Seams{FenceLimits: limits})
}

// hastyLimit returns the time limit of a hook on hosts that are patient or not.
func hastyLimit(patient bool) time.Duration {
	if patient {
		return time.Hour
	}
	return hookLimit
}

// hookLimit is the time limit of a hook that switches a host off or on.
const hookLimit = 5 * time.Second

// power returns the path of a file that the test and the hook share.
func (l *loss) power(name string) string { return filepath.Join(l.b.Dir, "power", name) }

// await starts a claim on h2 that waits for the volume.
func (l *loss) await() <-chan harness.Result {
	l.t.Helper()
	claimed := l.b.StartVolctl("volume", "claim", "db", "--alloc", "web", "--timeout", "90s")
	l.mark = len(l.san.Events())
	return claimed
}

// expectAnswer waits until the error of another claim on h2 contains all given words. Until then, h2 does
// not attach the volume.
func (l *loss) expectAnswer(words ...string) {
	l.t.Helper()
	for end := time.Now().Add(60 * time.Second); ; {
		r := l.b.Try("volume", "claim", "db", "--alloc", "early", "--timeout", "1s")
		if r.Code == 0 || time.Now().After(end) {
			l.t.Fatalf("the claim on h2 ended with %d, and does not say %q: %s", r.Code, words, r.Err)
		}
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(r.Err, w) }) {
			break
		}
	}
	if calls := (&rig{t: l.t, san: l.san}).attachedBy("csi-h2"); len(calls) > 0 {
		l.t.Errorf("host h2 attaches the volume: %v", calls)
	}
}

// fence states on a host that h1 is switched off.
func (l *loss) fence(on *lab.Host) string {
	l.t.Helper()
	return on.Volctl("node", "fence", "h1", "--powered-off", "--reason", lossReason)
}

// partition cuts h1 from all other hosts while it writes. It still reaches the storage.
func (l *loss) partition() {
	l.t.Helper()
	l.write()
	l.Isolate(l.a)
}

// heal connects h1 again, after the SAN has refused a write of h1. The host has not rebooted. It does not
// get its lost volume back.
func (l *loss) heal() {
	l.t.Helper()
	l.awaitWriteError()
	l.Heal()
	l.awaitLost()
	l.b.Await("the refusal to unfence h1", func() bool {
		r := l.b.Try("node", "unfence", "h1")
		return r.Code == 4 && strings.Contains(r.Err, `still has volume "db" mounted`)
	})
	l.a.Must(l.writer.Kill())
}

// awaitWriteError waits until the writer on h1 has got an I/O error.
func (l *loss) awaitWriteError() {
	l.t.Helper()
	l.b.Await("the error of a write", func() bool {
		said, err := os.ReadFile(l.said())
		l.b.Must(err)
		words := strings.ToLower(string(said))
		return strings.Contains(words, "i/o error") || strings.Contains(words, "input/output error")
	})
}

// expectSilence asserts that since the last end of an attachment of h1, the SAN has accepted no write and
// no controller call of h1.
func (l *loss) expectSilence() {
	l.t.Helper()
	ends := l.of(0, func(e san.Event) bool { return e.Kind == san.KindDetach && e.Node == "csi-h1" })
	if len(ends) == 0 {
		l.t.Fatal("the SAN has not detached h1")
	}
	late := l.of(int(ends[len(ends)-1].Seq), func(e san.Event) bool {
		calls := e.Kind == san.KindCall && strings.HasPrefix(e.Method, "ControllerP")
		return e.Node == "csi-h1" && (calls || e.Kind == san.KindWrite)
	})
	if len(late) > 0 {
		l.t.Errorf("after the end of its attachment, h1 has made %v", late)
	}
}

// pageWriter is an environment variable that turns this test binary into a process that writes to a mapped
// file. Its value is the path of the file.
const pageWriter = "VOLAGENT_TEST_PAGES"

// writePages is the program of pageWriter. The process changes the pages of a mapped file all the time, and
// never synchronises them, so that the kernel writes them at some later time. When the process is continued
// after a stop, it synchronises them once, and then writes in the usual way. It reports each error.
func writePages(path string) int {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer func() { _ = f.Close() }() // it reports the error of an earlier write
	const size = 1 << 16
	if err := f.Truncate(size); err != nil {
		fmt.Println(err)
		return 1
	}
	pages, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		fmt.Println(err)
		return 1
	}

	resumed := make(chan os.Signal, 1)
	signal.Notify(resumed, syscall.SIGCONT)
	for n := byte(1); ; n++ {
		for i := range pages {
			pages[i] = n
		}
		fmt.Println("changed pages")
		select {
		case <-resumed:
			fmt.Println("the synchronisation ended with:", f.Sync())
			for {
				_, err := f.WriteAt([]byte("late"), 0)
				fmt.Println("a write ended with:", err)
				time.Sleep(200 * time.Millisecond)
			}
		case <-time.After(100 * time.Millisecond):
		}
	}
}
