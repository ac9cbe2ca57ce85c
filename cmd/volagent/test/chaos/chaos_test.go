package chaos_test

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
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

func TestMain(m *testing.M) { harness.Main(m) }

// These flags control the chaos run.
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
	chaosDeadline = 3 * time.Second // timeout of each call to the plugin "rec"
	chaosLocal    = 5 * time.Second // timeout of each call to the bundled driver
	chaosSettles  = 2 * time.Minute // time limit of settleDown, which starts when the run ends
	chaosForgets  = 8 * time.Minute // extra time to find containers whose end the agent missed
)

// chaos is one run of the chaos test. The run has one agent, two plugins, a container runtime, many
// clients, and faults.
type chaos struct {
	harness.Recorded
	api    *apiclient.Client
	seed   uint64
	all    bool // whether the run includes all kinds of requests and faults
	count  harness.Tally
	shared []*chaosStorage // volumes that all clients share
	served []*chaosStorage // volumes that all clients and their containers share
	mu     sync.Mutex
	others []*chaosStorage // volumes that clients created during the run
	agent  agentKeeper
	box    *harness.Box // nil in a run without containers
	boxMu  sync.RWMutex // held for writing while dockerd restarts
	driver string       // name of the agent's volume plugin in docker
	drains atomic.Int64 // number of drains that have started
	// draining counts the drains that are still in progress.
	draining atomic.Int64

	failOnce sync.Once
	failed   context.CancelFunc // cancels the run at the first failure
}

// TestChaos makes clients send all kinds of requests concurrently. Meanwhile it kills the agent,
// the plugins and the container runtime, and makes CSI calls fail. At the end all acknowledged data
// must be intact, the plugin's journal must show no violation of CSI, and the host must have no
// leftovers.
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
	c.Recorded = harness.NewRecorded(t, chaosDeadline.String(), func(cfg *csitest.Config) {
		harness.WithExpansion(nil)(cfg)
		harness.WithSnapshots(cfg)
		cfg.GroupSnapshot, cfg.Lists, cfg.Get = false, true, true
		cfg.PublishedNodes = *chaosSeed%2 == 0
		cfg.LoopDevices = true     // the agent must check which processes use a device
		cfg.Images = privatePrefix // private volumes use loop devices
	})
	c.Must(os.WriteFile(filepath.Join(c.Dir, "plugins.d", "local.yaml"), fmt.Appendf(nil, "id: local\nbuiltin: local\ntimeouts: {node: %[1]s, controller: %[1]s}\n", chaosLocal), 0o644))
	t.Cleanup(c.shortLog)
	c.api = apiclient.New(c.Socket())
	t.Cleanup(c.api.Close)
	c.OmitFlags, c.MoreArgs = []string{"--log-level"}, []string{"--log-level", "info"}
	if c.wants(doRun) {
		c.startBox()
	}
	c.agent.start(c)
	t.Cleanup(c.agent.stop)
	return c
}

// wants reports whether the run includes this kind of request.
func (c *chaos) wants(kind clientKind) bool {
	return slices.Contains(clientKinds(c.all, *chaosOnly), kind)
}

// fail marks the test as failed and ends the run. It prints the seed and, if s is not nil, the
// history of that volume.
func (c *chaos) fail(s *chaosStorage, format string, args ...any) {
	c.failOnce.Do(func() {
		c.T.Errorf("seed %d: %s", c.seed, fmt.Sprintf(format, args...))
		if s != nil {
			c.T.Errorf("the history of %q (the newest lines):\n%s\nthe plugin's calls for it:\n%s", s.name, s.told(), c.callsOf(s.name))
		}
		c.failed()
	})
}

// callsOf returns the last 60 calls that changed the given volume.
func (c *chaos) callsOf(name string) string {
	j, err := csitest.LoadJournal(c.Config.JournalPath())
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

// watchRules checks the plugin's journal every second, so that the run ends soon after a violation
// of CSI.
func (c *chaos) watchRules(ctx context.Context) {
	for from := int64(0); rest(ctx, time.Second); {
		from = c.checkRules(from)
	}
}

// checkRules reads the plugin's journal from the given offset and fails the run if the journal
// shows a violation of CSI. It returns the offset at which it stopped.
func (c *chaos) checkRules(from int64) int64 {
	broken, next, err := csitest.ViolationsSince(c.Config.JournalPath(), from)
	if err != nil {
		c.fail(nil, "%v", err)
	}
	for _, v := range broken {
		c.fail(c.storage(v.Volume), "a rule of CSI was broken at %s: %s", v.Time.Format("15:04:05.000"), v)
	}
	return next
}

// storage returns the storage with the given name. For an unknown name it returns a new storage, so
// that callsOf can show the calls for it.
func (c *chaos) storage(name string) *chaosStorage {
	for _, s := range c.everything() {
		if s.name == name {
			return s
		}
	}
	return newStorage(name, "rec", false)
}

// everything returns all volumes of the run.
func (c *chaos) everything() []*chaosStorage {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Concat(c.shared, c.served, c.others)
}

// keep adds a volume to the volumes that clients created. forget removes a volume from them.
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

// rest sleeps for the duration d. It returns false if the run ends during the sleep.
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

// isAttached reports whether the storage of a volume is really connected to the host. It asks the
// plugin "rec" instead of the agent.
func (c *chaos) isAttached(s *chaosStorage) (bool, error) {
	if s.plugin != "rec" {
		return true, nil
	}
	return csitest.Attached(c.Config, s.name)
}

// same returns an error unless the opened file is on the volume that the client claimed.
func (c *chaos) same(o *opened) error {
	if o.s.plugin != "rec" || o.s.raw {
		return nil
	}
	var is, device unix.Stat_t
	if dev := csitest.DeviceOf(c.Config, o.s.name); dev != "" {
		if err := errors.Join(unix.Fstat(int(o.file.Fd()), &is), unix.Stat(dev, &device)); err != nil {
			return err
		}
		if is.Dev != device.Rdev {
			return fmt.Errorf("what is mounted at %s is not %s", o.path, dev)
		}
		return nil
	}
	want, err := os.Stat(csitest.DataDir(c.Config, o.s.name))
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

// registerAs registers a storage volume of the plugin "rec" under the given volume id.
func (c *chaos) registerAs(ctx context.Context, s *chaosStorage, id string) error {
	spec := harness.MultiWriterSpec(id, s.name)
	if s.raw {
		spec.Capabilities[0].AttachmentMode = "block-device"
	}
	_, err := c.api.RegisterVolume(ctx, spec, false)
	s.log("registered as %q: %v", id, err)
	if err == nil {
		s.rename(id)
		return nil
	}
	// The storage may already be registered: an earlier request may have succeeded although the
	// client did not receive the answer.
	all, listed := c.api.Volumes(ctx)
	for _, v := range all {
		if listed == nil && v.Spec.ExternalID == s.name {
			s.rename(v.Spec.ID)
			return nil
		}
	}
	return err
}

// atDir creates and returns the directory on which a client mounts volumes.
func (c *chaos) atDir(client string) (string, error) {
	dir := filepath.Join(c.Dir, "at", client)
	return dir, os.MkdirAll(dir, 0o755)
}

// shortLog searches the agent's log for crashes and data races. Then it truncates the log to its
// last lines.
func (c *chaos) shortLog() {
	raw, err := os.ReadFile(c.Log.Name())
	c.Must(err)
	for _, bad := range []string{"DATA RACE", "panic: ", "fatal error: "} {
		if _, after, found := strings.Cut(string(raw), bad); found {
			c.T.Errorf("seed %d: the agent's log holds %q%.4000s", c.seed, bad, after)
		}
	}
	all := strings.SplitAfter(string(raw), "\n")
	c.Must(os.WriteFile(c.Log.Name(), []byte(strings.Join(all[max(0, len(all)-100):], "")), 0o644))
}
