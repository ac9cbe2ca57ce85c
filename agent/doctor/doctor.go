// Package doctor compares the agent's records with the state of the host. It compares the state
// database with the mount table, the plugins and the devices. It also checks the entries for
// volumes in fstab and unit files. For each problem it reports the problem, the consequence and a
// command. On request it applies the few fixes that cannot do harm.
//
//	picture.go   the collected data, as values
//	doctor.go    the checks of the host, each with a time limit and none through a plugin
//	finding.go   the type Finding, and the kinds of findings
//	rules_*.go   the rules: pure functions from the picture to findings
//	mend.go      the fixes, each after a second examination
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

// Records reads the stored records. Claims whose owners are gone read as detaching.
type Records interface {
	Volume(id string) (volume.Record, bool)
	Volumes() []volume.Record
}

// Queue observes volumes and makes the agent work on them.
type Queue interface {
	Look(ctx context.Context, r volume.Record) (volume.Observed, *volume.Attempt)
	Wake(id string)
	Changed(id string) <-chan struct{}
	Exclusive(ctx context.Context, id string, fn func() error) error
}

// Host observes this host. Each observation has a time limit.
type Host interface {
	// Mounts returns the whole mount table.
	Mounts() ([]Mounted, error)
	Contents(ctx context.Context, path string) (Contents, error)

	// Block returns a device. It returns false if another disk has the device number now.
	Block(dev volume.Device) (Block, bool)

	// Loops returns the loop devices that have a file and keep it until they are detached
	// explicitly.
	Loops() []Loop

	// Leftovers returns the files and directories below the root of all volume mounts, except the
	// known paths and their parents.
	Leftovers(ctx context.Context, known map[string]bool) ([]Leftover, error)
	RemoveLeftover(path string) error
}

// Notes checks the notes from which the agent can adopt claims.
type Notes interface {
	// Check finds notes without a claim, claims without a note, and invalid notes.
	Check(records []volume.Record) []NoteFile
	// Fix writes or removes the note of a claim, as the claim's current record requires.
	Fix(n NoteFile) error
}

// Guards checks the directories that the agent protects against writes.
type Guards interface {
	// On reports whether a directory refuses writes now. If the check fails, it returns false.
	On(ctx context.Context, dir string) bool
	// Lift makes a directory writable again, unless another record names it too. Then it removes
	// the directory from a volume's record.
	Lift(ctx context.Context, dir, id string) error
}

// Options are the dependencies of a Doctor. Each function returns the data that its name says,
// within a few seconds.
type Options struct {
	Root    string // the directory of all volume mounts
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

	// System describes systemd and the mount helper. The parameter helper says whether the mount
	// helper is needed.
	System func(ctx context.Context, helper bool) System
	Fstab  func() ([]fstab.Entry, error)
	Unmet  func() []Unmet

	// Runtimes asks docker and podman through their commands.
	Runtimes func(ctx context.Context) Runtimes
	Halt     string // why the agent sends no calls at all; empty if it sends calls

	// OtherDataDir is the data dir because of which the agent sends no calls. It is empty if there
	// is another reason.
	OtherDataDir string
	Now          func() time.Time
}

// Doctor examines the host. It keeps no data between two examinations.
type Doctor struct {
	o       Options
	mending sync.Mutex // only one request for fixes runs at a time
}

// New returns a Doctor without examining anything.
func New(o Options) *Doctor { return &Doctor{o: o} }

// Report is the result of an examination.
type Report struct {
	At                       time.Time
	Took                     time.Duration
	Volumes, Claims, Plugins int // the numbers of examined objects
	Findings                 []Finding
}

// The limits for checking volumes: the time for each, and the number checked in parallel. A hundred
// volumes that hang take two or three seconds.
const (
	lookWithin  = time.Second
	looksAtOnce = 48
	// examineWithin limits the whole examination.
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

// look collects the picture.
func (d *Doctor) look(ctx context.Context) Picture {
	p := Picture{Now: d.o.Now(), Root: d.o.Root, Halt: d.o.Halt, OtherDataDir: d.o.OtherDataDir}
	var wg sync.WaitGroup
	var aside Picture // filled in parallel
	wg.Go(func() { aside.Database = d.o.Database() })
	wg.Go(func() { aside.Plugins = d.o.Plugins(ctx) })
	wg.Go(func() { aside.Runtimes = d.o.Runtimes(ctx) })
	wg.Go(func() {
		aside.Entries, aside.EntriesErr = d.o.Fstab()
		aside.System = d.o.System(ctx, len(aside.Entries) > 0)
		aside.Faults = fstab.Check(aside.Entries, func(dir string) fstab.Spot { return d.spot(ctx, dir) })
	})

	// The records are read before the host. The unexplained parts of the host are then compared
	// with the records once more, because claims come and go in the meantime.
	records := d.o.Records.Volumes()
	p.Deregistered, p.Tests, p.Unmet = d.o.Deregistered(), d.o.Tests(), d.o.Unmet()
	p.Volumes = d.volumes(ctx, records)
	known := p.explained()
	p.Loops = d.o.Host.Loops()
	p.Mounts, p.MountsErr = d.o.Host.Mounts()
	p.Leftovers, p.LeftoversErr = d.o.Host.Leftovers(ctx, known)
	p.Notes = d.o.Notes.Check(records)
	d.settle(ctx, &p)
	p.settleLoops(d.o.Host.Loops(), d.o.Records.Volumes())
	wg.Wait()
	p.Database, p.Plugins, p.System, p.Runtimes = aside.Database, aside.Plugins, aside.System, aside.Runtimes
	p.Entries, p.EntriesErr, p.Faults = aside.Entries, aside.EntriesErr, aside.Faults
	p.Guards = d.guards(ctx)

	return p
}

// guards returns the directories that refuse writes because of a record, except those that a claim
// uses by now.
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

// settle drops mounts and leftovers that the records explain by now or that are gone.
func (d *Doctor) settle(ctx context.Context, p *Picture) {
	if len(p.Leftovers) == 0 && len(p.unexplained()) == 0 {
		return
	}

	late := Picture{Root: p.Root, Tests: d.o.Tests(), Deregistered: d.o.Deregistered()}
	for _, r := range d.o.Records.Volumes() {
		late.Volumes = append(late.Volumes, Volume{Record: r})
	}

	known := late.explained()
	if now, err := d.o.Host.Mounts(); err == nil {
		there := map[string]bool{}
		for _, m := range now {
			there[m.Path] = true
		}

		before := p.explained()
		p.Mounts = slices.DeleteFunc(p.Mounts, func(m Mounted) bool { return !before[m.Path] && (known[m.Path] || !there[m.Path]) })
	}

	p.Leftovers = slices.DeleteFunc(p.Leftovers, func(l Leftover) bool {
		if known[l.Path] {
			return true
		}

		c, err := d.o.Host.Contents(ctx, l.Path)
		return err == nil && (c.Mounted || c.Kind == "")
	})
}

// volumes checks the mounts of all volumes, in the order of their ids.
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

// looksAgain is the number of tries for a volume whose record changes during the check.
const looksAgain = 3

// volume checks a volume, and again if its record changed during the check, because the observation
// does not belong to the new record. If the record changes during every try, the agent is working
// on the volume. Its mounts are then judged in a later examination.
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

// see observes the mounts of a volume, and the contents of the paths where a mount is missing.
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

// spot describes a directory that an entry names.
func (d *Doctor) spot(ctx context.Context, dir string) fstab.Spot {
	c, err := d.o.Host.Contents(ctx, dir)
	if err != nil {
		return fstab.Spot{Fault: err.Error()}
	}
	return fstab.Spot{Mounted: c.Mounted, Kind: c.Kind, Holds: c.Holds}
}

// ErrSlow means that a check was given up because it took too long. A finding quotes it.
var ErrSlow = errors.New("it did not answer in time")

// Bounded runs a function that may wait for slow storage, and gives it up after a while. The
// function then continues in the background, and until it ends the next Run fails at once.
type Bounded[T any] struct {
	mu    sync.Mutex
	since time.Time // zero: none runs
}

// Run runs fn unless an earlier fn still runs.
func (b *Bounded[T]) Run(within time.Duration, fn func() (T, error)) (T, error) {
	var none T
	b.mu.Lock()
	if since := b.since; !since.IsZero() {
		b.mu.Unlock()
		return none, fmt.Errorf("%w: no answer since %s", ErrSlow, since.Format(time.RFC3339))
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
