package cluster_test

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// outageRounds is the number of rounds that each worker makes before, during and after the outage. A
// round contains each kind of operation of the worker.
const outageRounds = 5

// localWithin is the timeout of a local operation. It is longer than a restart of a plugin.
const localWithin = time.Minute

// site is a host in TestOutageUnderLoad, with its volumes.
type site struct {
	*harness.Host
	name   string
	client *apiclient.Client
	life   atomic.Int64 // grows when the agent is killed, and again when it runs

	busy  []string // shared volumes with a claim that stays, and with further claims of the workers
	last  string   // a shared volume on which one worker has the only claim
	quiet string   // a shared volume that no worker uses
	alone []string // volumes of this host alone: one of the bundled driver, and one of the SAN
	fresh string   // a shared volume of which the host has no hold before the outage

	bases  map[string]string // the paths of the claims "base", by volume
	mounts string            // the mounts of the claims "base" on busy volumes
}

// crew is a set of workers that end together.
type crew struct {
	work    sync.WaitGroup
	workers []*worker
	ended   atomic.Bool
}

// worker repeats rounds of local operations.
type worker struct {
	name   string
	rounds atomic.Int64
}

// traces are the results of local operations.
type traces struct {
	mu     sync.Mutex
	counts map[string]int // the successful operations by kind
	failed []string       // the failed operations
}

// start starts a worker that calls round with a new name each time.
func (c *crew) start(name string, round func(alloc string)) {
	w := &worker{name: name}
	c.workers = append(c.workers, w)
	c.work.Go(func() {
		for !c.ended.Load() {
			round(fmt.Sprintf("%s-%d", name, w.rounds.Load()))
			w.rounds.Add(1)
		}
	})
}

// end ends all workers after their present round.
func (c *crew) end() {
	c.ended.Store(true)
	c.work.Wait()
}

// working returns the workers that have not ended.
func (c *crew) working() []*worker {
	if c.ended.Load() {
		return nil
	}
	return c.workers
}

// startSteady starts the workers of a host that run before, during and after the outage.
func (l *load) startSteady(s *site) {
	for i, id := range s.busy {
		for n := range 2 {
			l.steady.start(fmt.Sprintf("%s-claims%d%d", s.name, i, n), func(alloc string) {
				for _, id := range append([]string{id}, s.alone...) {
					l.use(s, id, alloc)
				}
			})
		}
		file := fmt.Sprintf("%s-files%d", s.name, i)
		l.steady.start(file, func(text string) { l.writeAndRead(s.bases[id], file, text) })
	}
}

// startLast starts the worker of a host that detaches the only claim of a volume, and claims the volume
// again. Without etcd, the host keeps its hold meanwhile.
func (l *load) startLast(s *site) {
	l.detach(s, s.last, "base")
	l.last.start(s.name+"-last", func(alloc string) { l.use(s, s.last, alloc) })
}

// awaitRounds waits until each worker has made further rounds. It ends the test if a local operation has
// failed.
func (l *load) awaitRounds(when string) {
	l.t.Helper()
	until := map[*worker]int64{}
	for _, c := range []*crew{&l.steady, &l.last} {
		for _, w := range c.working() {
			until[w] = w.rounds.Load() + outageRounds + 1 // the present round began earlier
		}
	}
	for w, n := range until {
		l.hosts[0].Await("rounds of "+w.name+" "+when, func() bool {
			l.expectNoFailure()
			return w.rounds.Load() >= n
		})
	}
}

// expectNoFailure ends the test if a local operation has failed.
func (l *load) expectNoFailure() {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.failed) > 0 {
		l.t.Fatalf("failed local operations:\n%s", strings.Join(l.failed, "\n"))
	}
}

// note counts a local operation. If it has failed, note keeps the error.
func (l *traces) note(kind, what string, err error) (ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failed = append(l.failed, fmt.Sprintf("%s: cannot %s %s: %v", time.Now().UTC().Format("15:04:05.000"), kind, what, err))
		return false
	}
	l.counts[kind]++
	return true
}

// use claims a volume, writes and reads a file, and detaches the claim.
func (l *load) use(s *site, id, alloc string) {
	got, err := s.claim(l.t.Context(), id, alloc, localWithin)
	if !l.note("claim", id+" for "+alloc, err) {
		return
	}
	l.writeAndRead(got, alloc, alloc)
	l.detach(s, id, alloc)
}

// writeAndRead writes a file to the disk, and reads it.
func (l *load) writeAndRead(dir, name, text string) {
	path := filepath.Join(dir, name)
	out, err := exec.Command("sh", "-c", `printf %s "$2" | dd of="$1" conv=fsync status=none`, "sh", path, text).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	if !l.note("write", path, err) {
		return
	}

	out, err = exec.Command("cat", path).CombinedOutput()
	if err == nil && string(out) != text {
		err = fmt.Errorf("the file contains %q and not %q", out, text)
	}
	l.note("read", path, err)
}

// detach detaches a claim.
func (l *load) detach(s *site, id, alloc string) {
	err := s.detach(l.t.Context(), id, alloc)
	l.note("detach", id+" for "+alloc, err)
}

// claim claims a volume, and returns the path.
func (s *site) claim(ctx context.Context, id, alloc string, timeout time.Duration) (path string, err error) {
	_, err = s.send(func() error {
		got, err := s.client.ClaimVolume(ctx, id, alloc, api.ClaimRequest{}, timeout)
		if err == nil {
			path = got.Path
		}
		return err
	})
	return path, err
}

// detach detaches a claim. The first of several requests may have detached it.
func (s *site) detach(ctx context.Context, id, alloc string) error {
	repeated, err := s.send(func() error {
		return s.client.DetachClaim(ctx, id, alloc, apiclient.DetachOptions{Wait: localWithin})
	})
	if repeated && harness.CodeOf(err) == api.CodeNotFound {
		return nil
	}
	return err
}

// send sends a request. It repeats the request while the test restarts the agent.
func (s *site) send(do func() error) (repeated bool, err error) {
	for ; ; repeated = true {
		before := s.life.Load()
		err := do()
		restarting := before%2 == 1 || before != s.life.Load()
		if !restarting || harness.CodeOf(err) != api.CodeUnreachable {
			return repeated, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}
