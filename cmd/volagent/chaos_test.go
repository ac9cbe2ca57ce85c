package main_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/volmgr/csitest"
)

// Flags of the chaos run.
var (
	chaosSeed    = flag.Uint64("chaos.seed", 1, "the chaos run's random numbers come from this seed")
	chaosFor     = flag.Duration("chaos.for", 0, "run chaos for so long, with everything; 0 is the short run with the steps marked as bounded")
	chaosOnly    = flag.String("chaos.only", "", "only these commands of clients, separated by commas; for a search")
	chaosCalls   = flag.String("chaos.calls", "", "only these calls go wrong, separated by commas")
	chaosTrouble = flag.String("chaos.trouble", "", "only these troubles, separated by commas")
)

const (
	chaosClients  = 16
	chaosShort    = 12 * time.Second
	chaosDeadline = 3 * time.Second // for each call to the plugin "rec"
	chaosLocal    = 5 * time.Second // for each call to the bundled driver
	chaosSettles  = 2 * time.Minute // time limit for the end of the run, once there are no more faults
	chaosForgets  = 8 * time.Minute // additional time for references of containers whose end was missed
)

// chaos is one run. It has an agent, two plugins, a container runtime, clients, and faults.
type chaos struct {
	recorded
	api    *apiclient.Client
	seed   uint64
	all    bool // nothing is left out
	count  tally
	shared []*chaosStorage // shared by all clients
	served []*chaosStorage // shared by all clients and by containers
	mu     sync.Mutex
	others []*chaosStorage // volumes that clients created
	agent  agentKeeper
	box    *box         // nil without containers
	boxMu  sync.RWMutex // held for writing while dockerd restarts
	driver string       // the name of the agent's volume plugin in docker
	drains atomic.Int64 // drains that have begun
	// draining counts the drains that have not ended.
	draining atomic.Int64

	failOnce sync.Once
	failed   context.CancelFunc // ends the run at the first failure
}

// tally counts events by name.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *tally) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[what]++
}

// String returns one line for each counted event.
func (c *tally) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var lines []string
	for what, n := range c.n {
		lines = append(lines, fmt.Sprintf("%7d %s", n, what))
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[8:], b[8:]) })
	return strings.Join(lines, "\n")
}

// TestChaos makes clients send all kinds of requests at once, while the agent, plugins and runtime
// are killed and calls fail. At the end no acknowledged byte may differ, the plugin's journal must
// show no broken rule, and nothing may remain on the host.
func TestChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes too long under the race detector")
	}
	t.Parallel()
	c := newChaos(t)
	t.Logf("seed %d: make chaos SEED=%d", c.seed, c.seed)
	begun := time.Now()
	c.prepareVolumes()
	ctx, cancel := context.WithTimeout(t.Context(), max(*chaosFor, chaosShort))
	defer cancel()
	c.failed = cancel
	var wg sync.WaitGroup
	for i := range chaosClients {
		wg.Go(func() { newChaosClient(c, i).run(ctx) })
	}
	wg.Go(func() { c.makeTrouble(ctx) })
	wg.Go(func() { c.watchRules(ctx) })
	wg.Wait()
	ran := time.Since(begun)
	c.settleDown()
	c.agent.stop()
	t.Logf("seed %d, %s of chaos, settled %s later\n%s", c.seed, ran.Round(time.Second), (time.Since(begun) - ran).Round(time.Second), &c.count)
}

func newChaos(t *testing.T) *chaos {
	t.Helper()
	c := &chaos{seed: *chaosSeed, all: *chaosFor > 0, failed: func() {}}
	c.recorded = prepared(t, chaosDeadline.String(), func(cfg *csitest.Config) {
		growing(nil)(cfg)
		snapshooter(cfg)
		cfg.GroupSnapshot, cfg.Lists, cfg.Get = false, true, true
		cfg.PublishedNodes = *chaosSeed%2 == 0
		cfg.LoopDevices = true     // the agent checks which processes use a device
		cfg.Images = privatePrefix // the agent also checks the devices of lazily unmounted volumes
	})
	c.must(os.WriteFile(filepath.Join(c.dir, "plugins.d", "local.yaml"), fmt.Appendf(nil, "id: local\nbuiltin: local\ntimeouts: {node: %[1]s, controller: %[1]s}\n", chaosLocal), 0o644))
	t.Cleanup(c.shortLog)
	c.api = apiclient.New(c.socket())
	t.Cleanup(c.api.Close)
	c.flags, c.more = []string{"--log-level"}, []string{"--log-level", "info"}
	if c.wants(doRun) {
		c.startBox()
	}
	c.agent.start(c)
	t.Cleanup(c.agent.stop)
	return c
}

// wants reports whether the run includes requests of this kind.
func (c *chaos) wants(kind clientKind) bool {
	return slices.Contains(clientKinds(c.all, *chaosOnly), kind)
}

// fail ends the run with a failure. It prints the seed and, if a volume is given, the history of
// the volume.
func (c *chaos) fail(s *chaosStorage, format string, args ...any) {
	c.failOnce.Do(func() {
		c.t.Errorf("seed %d: %s", c.seed, fmt.Sprintf(format, args...))
		if s != nil {
			c.t.Errorf("the history of %q (the newest lines):\n%s\nthe plugin's calls for it:\n%s", s.name, s.told(), c.callsOf(s.name))
		}
		c.failed()
	})
}

// callsOf returns the last calls for a volume.
func (c *chaos) callsOf(name string) string {
	j, err := csitest.LoadJournal(c.cfg.JournalPath())
	if err != nil {
		return err.Error()
	}
	calls := j.Calls.Of(name).Mutating()
	var b strings.Builder
	for _, one := range calls[max(0, len(calls)-60):] {
		b.WriteString(one.Start.Format("15:04:05.000 ") + one.String() + "\n")
	}
	return b.String()
}

// watchRules checks the plugin's journal during the run, so that the run ends soon after a rule is
// broken.
func (c *chaos) watchRules(ctx context.Context) {
	for from := int64(0); rest(ctx, time.Second); {
		from = c.checkRules(from)
	}
}

// checkRules fails the run if the journal shows a broken rule. It returns the offset up to which it
// has read.
func (c *chaos) checkRules(from int64) int64 {
	broken, next, err := csitest.ViolationsSince(c.cfg.JournalPath(), from)
	if err != nil {
		c.fail(nil, "%v", err)
	}
	for _, v := range broken {
		c.fail(c.storage(v.Volume), "a rule of CSI was broken at %s: %s", v.Time.Format("15:04:05.000"), v)
	}
	return next
}

// storage returns the storage of that name. If the run does not know the name, it returns a new
// storage, so that callsOf can show the calls for it.
func (c *chaos) storage(name string) *chaosStorage {
	for _, s := range c.everything() {
		if s.name == name {
			return s
		}
	}
	return newStorage(name, "rec", false)
}

// everything returns all storage volumes that the run knows.
func (c *chaos) everything() []*chaosStorage {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Concat(c.shared, c.served, c.others)
}

// keep adds a volume that a client created. forget removes it.
func (c *chaos) keep(s *chaosStorage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.others = append(c.others, s)
}

func (c *chaos) forget(s *chaosStorage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.others = slices.DeleteFunc(c.others, func(o *chaosStorage) bool { return o == s })
}

// rest waits, and reports whether the run continues.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// isAttached reports whether the storage of a volume of "rec" is really connected to the host,
// regardless of the agent's record.
func (c *chaos) isAttached(s *chaosStorage) (bool, error) {
	if s.plugin != "rec" {
		return true, nil
	}
	return csitest.Attached(c.cfg, s.name)
}

// same returns an error unless the opened file is on the expected volume.
func (c *chaos) same(o *opened) error {
	if o.s.plugin != "rec" || o.s.raw {
		return nil
	}
	var is, device unix.Stat_t
	if dev := csitest.DeviceOf(c.cfg, o.s.name); dev != "" {
		if err := errors.Join(unix.Fstat(int(o.file.Fd()), &is), unix.Stat(dev, &device)); err != nil {
			return err
		}
		if is.Dev != device.Rdev {
			return fmt.Errorf("what is mounted at %s is not %s", o.path, dev)
		}
		return nil
	}
	want, err := os.Stat(csitest.DataDir(c.cfg, o.s.name))
	if err != nil {
		return err
	}
	got, err := o.file.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(got, want) {
		return errors.New("what is mounted at " + o.path + " is not the volume")
	}
	return nil
}

// registerAs registers a storage volume of "rec" under an id.
func (c *chaos) registerAs(ctx context.Context, s *chaosStorage, id string) error {
	spec := spec(id, s.name)
	if s.raw {
		spec.Capabilities[0].AttachmentMode = "block-device"
	}
	_, err := c.api.RegisterVolume(ctx, spec, false)
	s.log("registered as %q: %v", id, err)
	if err == nil {
		s.rename(id)
		return nil
	}
	// An earlier registration may have succeeded without an answer.
	all, listed := c.api.Volumes(ctx)
	for _, v := range all {
		if listed == nil && v.Spec.ExternalID == s.name {
			s.rename(v.Spec.ID)
			return nil
		}
	}
	return err
}

// atDir returns the directory at which a client mounts volumes.
func (c *chaos) atDir(client string) (string, error) {
	dir := filepath.Join(c.dir, "at", client)
	return dir, os.MkdirAll(dir, 0o755)
}

// shortLog searches the whole log of the agent for crashes and data races, and then keeps only its
// last lines.
func (c *chaos) shortLog() {
	raw, err := os.ReadFile(c.log.Name())
	c.must(err)
	for _, bad := range []string{"DATA RACE", "panic: ", "fatal error: "} {
		if _, after, found := strings.Cut(string(raw), bad); found {
			c.t.Errorf("seed %d: the agent's log holds %q%.4000s", c.seed, bad, after)
		}
	}
	all := strings.SplitAfter(string(raw), "\n")
	c.must(os.WriteFile(c.log.Name(), []byte(strings.Join(all[max(0, len(all)-100):], "")), 0o644))
}
