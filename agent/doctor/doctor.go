// Package doctor compares the agent's records with the state of the host. It checks the mount
// table, the plugins, the devices, and the entries for volumes in fstab and in mount units. For
// each problem, it reports the consequence and a command. On request, it applies fixes that cannot
// do harm.
//
//	picture.go   the type Picture: the collected data of one examination
//	cluster.go   the part of the picture about the cluster
//	doctor.go    collects the data; each check has a time limit and calls no plugin
//	finding.go   the type Finding, and the kinds of findings
//	rules_*.go   the rules: pure functions that derive findings from a picture
//	fix.go       the fixes; each fix examines the host again before it runs
package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/volagent/volagent/agent/fstab"
	"github.com/volagent/volagent/volmgr/volume"
)

// Records reads the stored records. If the owner of a claim has ended, Records returns the claim as
// detaching.
type Records interface {
	Volume(id string) (volume.Record, bool)
	Volumes() []volume.Record
}

// Queue observes volumes and can make the agent retry their steps.
type Queue interface {
	Look(ctx context.Context, r volume.Record) (volume.Observed, *volume.Attempt)
	Wake(id string)
	Changed(id string) <-chan struct{}
	Exclusive(ctx context.Context, id string, fn func() error) error
}

// Host gives access to this host. Each method has a time limit.
type Host interface {
	// Mounts returns the complete mount table.
	Mounts() ([]Mounted, error)
	Contents(ctx context.Context, path string) (Contents, error)

	// Block describes a block device. The result is false if the device number now belongs to
	// another disk.
	Block(dev volume.Device) (Block, bool)

	// Loops returns the loop devices that stay attached to their backing file until a program
	// detaches them explicitly.
	Loops() []Loop

	// Leftovers returns the files and directories below the directory of all volume mounts. It
	// omits the paths in known and their parent directories.
	Leftovers(ctx context.Context, known map[string]bool) ([]Leftover, error)
	RemoveLeftover(path string) error
}

// Notes checks the notes from which the agent can adopt claims.
type Notes interface {
	// Check finds notes without a claim, claims without a note, and notes that are invalid.
	Check(records []volume.Record) []NoteFile
	// Fix writes or removes the note of a claim, so that it matches the claim's current record.
	Fix(n NoteFile) error
}

// Guards examines and changes the guards of directories. A guard is the immutable flag, which stops
// writes while no volume is mounted.
type Guards interface {
	// On reports whether a directory is guarded now. If the check fails, it returns false.
	On(ctx context.Context, dir string) bool
	// Lift removes a directory from the record of a volume. It also makes the directory writable,
	// unless it is still in another record.
	Lift(ctx context.Context, dir, id string) error
}

// Options contains the settings and dependencies of a Doctor. Each function must return within a
// few seconds.
type Options struct {
	Root    string // the directory that contains all volume mounts
	Records Records
	Queue   Queue
	Host    Host
	Notes   Notes
	Guards  Guards
	Owners  volume.Owners

	Database     func() Database
	Deregistered func() []Deregistered
	Tests        func() []Test
	Plugins      func(ctx context.Context) []Plugin

	// System describes systemd and the mount helper. The argument helper is true if any entry in
	// fstab or in a mount unit needs the mount helper.
	System func(ctx context.Context, helper bool) System
	Fstab  func() ([]fstab.Entry, error)
	Unmet  func() []Unmet

	// Runtimes runs the commands of docker and podman to list their volumes.
	Runtimes func(ctx context.Context) Runtimes
	Halt     string // why the agent does not call plugins; empty in normal operation

	// Cluster reads the part of this host in its cluster. The records are those of this host.
	Cluster func(ctx context.Context, records []volume.Record) Cluster

	// CompareHolds makes the agent compare the holds of this host with the cluster soon.
	CompareHolds func()

	// OtherDataDir is the data dir of another agent, whose mounts or plugins are the reason for
	// Halt. It is empty if there is no such agent.
	OtherDataDir string
	Now          func() time.Time
}

// Doctor examines the host. It keeps no data between examinations.
type Doctor struct {
	o       Options
	mending sync.Mutex // locked by Fix, so that only one request changes the host at a time
}

// New returns a Doctor. It does not examine the host yet.
func New(o Options) *Doctor { return &Doctor{o: o} }

// Report is the result of an examination.
type Report struct {
	At                       time.Time
	Took                     time.Duration
	Volumes, Claims, Plugins int // how many objects of each kind were examined
	Findings                 []Finding
}

// lookWithin limits the time to check one volume. looksAtOnce limits the number of simultaneous
// checks. With these values, a hundred volumes that hang delay the examination by two or three
// seconds.
const (
	lookWithin  = time.Second
	looksAtOnce = 48
	// examineWithin limits the time of the complete examination.
	examineWithin = 15 * time.Second
)

// Examine examines the host once. It calls no plugin and does not wait for storage that hangs.
func (d *Doctor) Examine(ctx context.Context) Report {
	ctx, cancel := context.WithTimeout(ctx, examineWithin)
	defer cancel()

	begun := d.o.Now()
	p := d.look(ctx)

	return Report{
		At: begun, Took: d.o.Now().Sub(begun), Volumes: len(p.Volumes), Claims: p.claims(), Plugins: len(p.Plugins),
		Findings: Judge(p),
	}
}

// look collects the data to which the rules are applied.
func (d *Doctor) look(ctx context.Context) Picture {
	p := Picture{Now: d.o.Now(), Root: d.o.Root, Halt: d.o.Halt, OtherDataDir: d.o.OtherDataDir}
	var wg sync.WaitGroup
	var aside Picture // filled by the goroutines below
	wg.Go(func() { aside.Database = d.o.Database() })
	wg.Go(func() { aside.Plugins = d.o.Plugins(ctx) })
	wg.Go(func() { aside.Runtimes = d.o.Runtimes(ctx) })
	wg.Go(func() {
		aside.Entries, aside.EntriesErr = d.o.Fstab()
		aside.System = d.o.System(ctx, len(aside.Entries) > 0)
		aside.Faults = fstab.Check(aside.Entries, func(dir string) fstab.Spot { return d.spot(ctx, dir) })
	})

	// Read the records before the state of the host. Volumes may be claimed or detached in the
	// meantime, so settle later reads the records again.
	records := d.o.Records.Volumes()
	p.Deregistered, p.Tests, p.Unmet = d.o.Deregistered(), d.o.Tests(), d.o.Unmet()
	p.Volumes = d.volumes(ctx, records)
	p.Cluster = d.o.Cluster(ctx, records)
	d.settleCluster(&p)
	p.Loops = d.o.Host.Loops()
	p.Mounts, p.MountsErr = d.o.Host.Mounts()
	p.Leftovers, p.LeftoversErr = d.o.Host.Leftovers(ctx, p.needed())
	p.Notes = d.o.Notes.Check(records)
	d.settle(ctx, &p)
	p.settleLoops(d.o.Host.Loops(), d.recorded())
	wg.Wait()
	p.Database, p.Plugins, p.System, p.Runtimes = aside.Database, aside.Plugins, aside.System, aside.Runtimes
	p.Entries, p.EntriesErr, p.Faults = aside.Entries, aside.EntriesErr, aside.Faults
	p.Guards = d.guards(ctx)

	return p
}

// guards returns the guarded directories that no current claim uses.
func (d *Doctor) guards(ctx context.Context) (all []Guard) {
	records := d.o.Records.Volumes()
	var wg sync.WaitGroup
	var mu sync.Mutex
	slots := make(chan struct{}, looksAtOnce)

	for dir, ids := range guarding(records) {
		if claimedAt(records, dir) != nil {
			continue
		}

		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, lookWithin)
			defer cancel()
			if d.o.Guards.On(ctx, dir) {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, Guard{dir, ids})
			}
		})
	}

	wg.Wait()
	return all
}

// recorded returns a picture of the current records and plugin tests, without observations.
func (d *Doctor) recorded() Picture {
	p := Picture{Root: d.o.Root, Tests: d.o.Tests(), Deregistered: d.o.Deregistered()}
	for _, r := range d.o.Records.Volumes() {
		p.Volumes = append(p.Volumes, Volume{Record: r})
	}
	return p
}

// settle reads the host and the records again. It then removes from the picture the mounts and
// leftovers that no longer exist, or that a newer record explains.
func (d *Doctor) settle(ctx context.Context, p *Picture) {
	if len(p.Leftovers) == 0 && len(p.unexplained()) == 0 {
		return
	}

	late := d.recorded()
	if now, err := d.o.Host.Mounts(); err == nil {
		there := map[string]bool{}
		for _, m := range now {
			there[m.Path] = true
		}

		before, known := p.explained(), late.explained()
		p.Mounts = slices.DeleteFunc(p.Mounts, func(m Mounted) bool { return !before[m.Path] && (known[m.Path] || !there[m.Path]) })
	}

	needed := late.needed()
	p.Leftovers = slices.DeleteFunc(p.Leftovers, func(l Leftover) bool {
		if needed[l.Path] {
			return true
		}

		c, err := d.o.Host.Contents(ctx, l.Path)
		return err == nil && (c.Mounted || c.Kind == "")
	})
}

// volumes checks the mounts of all volumes, sorted by id.
func (d *Doctor) volumes(ctx context.Context, records []volume.Record) []Volume {
	slices.SortFunc(records, func(a, b volume.Record) int { return strings.Compare(a.Volume.ID, b.Volume.ID) })
	all := make([]Volume, len(records))
	var wg sync.WaitGroup
	slots := make(chan struct{}, looksAtOnce)

	for i, r := range records {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			all[i] = d.volume(ctx, r)
		})
	}

	wg.Wait()
	return all
}

// looksAgain is the maximum number of checks of one volume. The check is repeated if the volume's
// record has changed during the check.
const looksAgain = 3

// volume checks the mounts, owners and devices of a volume. If the record changes during the check,
// the result may not match the new record, so volume repeats the check. If the record keeps
// changing, the agent is working on the volume, so only a later examination judges the volume.
func (d *Doctor) volume(ctx context.Context, r volume.Record) (v Volume) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()

	for range looksAgain {
		v = d.see(ctx, r)
		now, ok := d.o.Records.Volume(r.Volume.ID)
		v.Moving = !ok || now.Generation != r.Generation || v.atWork()
		if !v.Moving || !ok {
			break
		}

		r = now
	}

	r = v.Record
	for alloc, c := range r.Claims {
		if c.Wanted && c.Owner.Mortal() {
			v.Owners[alloc] = d.o.Owners.View(c.Keeper())
		}
	}

	if r.Held() && r.Node.Boot == v.Observed.Boot {
		for _, dev := range r.Node.Devices {
			if b, is := d.o.Host.Block(dev); is {
				v.Blocks[dev.Number] = b
			}
		}
	}

	return v
}

// see observes the mounts of a volume. If a mount is missing, it reads the contents of the path.
func (d *Doctor) see(ctx context.Context, r volume.Record) Volume {
	v := Volume{Record: r, Owners: map[string]volume.OwnerView{}, Blocks: map[string]Block{}, Beneath: map[string]Contents{}}
	v.Observed, v.Attempt = d.o.Queue.Look(ctx, r)
	for _, m := range v.mounts() {
		if m.sight.Seen != volume.SeenNothing {
			continue
		}
		if c, err := d.o.Host.Contents(ctx, m.path); err == nil {
			v.Beneath[m.path] = c
		}
	}

	return v
}

// spot describes the directory of an entry in fstab or in a mount unit.
func (d *Doctor) spot(ctx context.Context, dir string) fstab.Spot {
	c, err := d.o.Host.Contents(ctx, dir)
	if err != nil {
		return fstab.Spot{Fault: err.Error()}
	}
	return fstab.Spot{Mounted: c.Mounted, Kind: c.Kind, Holds: c.Holds}
}

// ErrSlow means that a check did not finish within its time limit. The text of ErrSlow appears in
// findings.
var ErrSlow = errors.New("no answer in time")

// Bounded runs a function that slow storage may block. When the time limit is reached, it stops
// waiting, but the function continues in the background. Until the function ends, every call of Run
// fails immediately.
type Bounded[T any] struct {
	mu    sync.Mutex
	since time.Time // when the running function started; zero if none is running
}

// Run runs fn and waits for its result, but at most for the given time. It fails immediately if an
// earlier function is still running.
func (b *Bounded[T]) Run(within time.Duration, fn func() (T, error)) (T, error) {
	var none T
	b.mu.Lock()
	if since := b.since; !since.IsZero() {
		b.mu.Unlock()
		return none, fmt.Errorf("%w: the same check has been running since %s", ErrSlow, since.Format(time.RFC3339))
	}

	b.since = time.Now()
	b.mu.Unlock()
	type result struct {
		val T
		err error
	}
	done := make(chan result, 1)
	go func() {
		val, err := fn()
		b.mu.Lock()
		b.since = time.Time{}
		b.mu.Unlock()
		done <- result{val, err}
	}()

	timer := time.NewTimer(within)
	defer timer.Stop()

	select {
	case r := <-done:
		return r.val, r.err
	case <-timer.C:
		return none, ErrSlow
	}
}

// retryWithin limits the total time to wait for the results of retries.
const retryWithin = 5 * time.Second

// retries makes the agent run the next steps of volumes immediately instead of after a delay. For
// each volume, it holds a channel that is closed when the volume's record changes.
type retries struct {
	queue Queue
	by    map[string]<-chan struct{}
}

func (t retries) begin(key string) {
	if _, twice := t.by[key]; !twice {
		t.by[key] = t.queue.Changed(key)
		t.queue.Wake(key)
	}
}

// wait waits up to a few seconds for the results of the retries, so that the next examination shows
// them.
func (t retries) wait(ctx context.Context) {
	timer := time.NewTimer(retryWithin)
	defer timer.Stop()

	for _, changed := range t.by {
		select {
		case <-changed:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}
