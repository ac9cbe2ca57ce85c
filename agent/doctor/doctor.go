// Package doctor holds what is recorded beside what the host shows: the state database
// beside the mount table beside the plugins beside the devices, and what people wrote
// into fstab and unit files. It says what does not fit, what comes of it, and what
// helps; and it does those few things that cannot harm anybody, if it is told to.
//
//	picture.go   all that is looked at, as values
//	doctor.go    the looks, each bounded, and none of them at a plugin
//	finding.go   what a finding is, and the kinds that there are
//	rules_*.go   the rules: pure functions from the picture to findings
//	mend.go      what is done about a finding, after another look
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

// Records reads what is stored. Claims whose owners are gone read as being released.
type Records interface {
	Volume(id string) (volume.Record, bool)
	Volumes() []volume.Record
}

// Queue looks at volumes, and works on them.
type Queue interface {
	Look(ctx context.Context, r volume.Record) (volume.Observed, *volume.Attempt)
	Wake(id string)
	Changed(id string) <-chan struct{}
	Exclusive(ctx context.Context, id string, fn func() error) error
}

// Host looks at this host. Each look is bounded in time.
type Host interface {
	// Mounts is the whole mount table.
	Mounts() ([]Mounted, error)
	Contents(ctx context.Context, path string) (Contents, error)
	// Block is a device; false if its number belongs to another disk now.
	Block(dev volume.Device) (Block, bool)
	// Loops are the loop devices that have a file, and keep it until they are detached.
	Loops() []Loop
	// Leftovers are names where volumes are mounted, but for known paths and what is
	// above them.
	Leftovers(ctx context.Context, known map[string]bool) ([]Leftover, error)
	RemoveLeftover(path string) error
}

// Notes are what claims could be adopted from.
type Notes interface {
	// Check finds notes of no claim, claims with no note, and what makes no sense.
	Check(records []volume.Record) []NoteFile
	// Mend writes or drops the note of a claim, as its record is now.
	Mend(n NoteFile) error
}

// Guards are the directories that the agent made to refuse writes.
type Guards interface {
	// On reports whether a directory refuses writes now; one of which that cannot be told
	// does not.
	On(ctx context.Context, dir string) bool
	// Lift has a volume's record forget a directory, and lets it be written to before
	// that, unless another record names it too.
	Lift(ctx context.Context, dir, id string) error
}

// Options are what a Doctor needs. The functions read what their names say, in no more
// than a few seconds.
type Options struct {
	Root    string // where volumes are mounted
	Records Records
	Queue   Queue
	Host    Host
	Notes   Notes
	Guards  Guards
	Owners  volume.Owners

	Database func() Database
	Debts    func() []Debt
	Tests    func() []Test
	Plugins  func(ctx context.Context) []Plugin
	// System is what systemd and the mount helper are like; helper says whether the
	// latter is needed.
	System func(ctx context.Context, helper bool) System
	Fstab  func() ([]fstab.Entry, error)
	Unmet  func() []Unmet
	// Runtimes asks docker and podman by their commands.
	Runtimes func(ctx context.Context) Runtimes
	Halt     string // why the agent sends no call at all; empty when it may
	// OtherDataDir is the data dir because of which it sends none; empty for another reason.
	OtherDataDir string
	Now          func() time.Time
}

// Doctor examines. It keeps nothing between two examinations.
type Doctor struct {
	o       Options
	mending sync.Mutex // one at a time
}

// New returns a Doctor; it looks at nothing.
func New(o Options) *Doctor { return &Doctor{o: o} }

// Report is what an examination found.
type Report struct {
	At                       time.Time
	Took                     time.Duration
	Volumes, Claims, Plugins int // that were looked at
	Findings                 []Finding
}

// A volume is looked at for so long, so many at once: a hundred that hang are told in
// two or three seconds.
const (
	lookWithin  = time.Second
	looksAtOnce = 48
	// examineWithin bounds everything.
	examineWithin = 15 * time.Second
)

// Examine looks at everything once. It asks no plugin, and waits for no storage that
// hangs.
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

// look makes the picture.
func (d *Doctor) look(ctx context.Context) Picture {
	p := Picture{Now: d.o.Now(), Root: d.o.Root, Halt: d.o.Halt, OtherDataDir: d.o.OtherDataDir}
	var wg sync.WaitGroup
	var aside Picture // what is looked at meanwhile
	wg.Go(func() { aside.Database = d.o.Database() })
	wg.Go(func() { aside.Plugins = d.o.Plugins(ctx) })
	wg.Go(func() { aside.Runtimes = d.o.Runtimes(ctx) })
	wg.Go(func() {
		aside.Entries, aside.EntriesErr = d.o.Fstab()
		aside.System = d.o.System(ctx, len(aside.Entries) > 0)
		aside.Faults = fstab.Check(aside.Entries, func(dir string) fstab.Spot { return d.spot(ctx, dir) })
	})
	// What is recorded is read before what the host shows, and once more for what that
	// does not explain: claims come and go meanwhile.
	records := d.o.Records.Volumes()
	p.Debts, p.Tests, p.Unmet = d.o.Debts(), d.o.Tests(), d.o.Unmet()
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

// guards are the directories that refuse writes because of what is recorded, but for
// those that a claim has by now.
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

// settle drops what is explained by now, or is gone.
func (d *Doctor) settle(ctx context.Context, p *Picture) {
	if len(p.Leftovers) == 0 && len(p.unexplained()) == 0 {
		return
	}
	late := Picture{Root: p.Root, Tests: d.o.Tests(), Debts: d.o.Debts()}
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

// volumes looks at the mounts of all volumes, in the order of their ids.
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

// looksAgain is how often a volume is looked at that changes under the look.
const looksAgain = 3

// volume looks at a volume, and again if the record has changed meanwhile: what was seen
// does not belong to it. One that changes under every look is at work, and its mounts
// are judged another time.
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

// see looks at the mounts of a volume, and at what lies where one is missing.
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

// spot is a directory that an entry names.
func (d *Doctor) spot(ctx context.Context, dir string) fstab.Spot {
	c, err := d.o.Host.Contents(ctx, dir)
	if err != nil {
		return fstab.Spot{Fault: err.Error()}
	}
	return fstab.Spot{Mounted: c.Mounted, Kind: c.Kind, Holds: c.Holds}
}

// ErrSlow is in a finding's words where a look was given up.
var ErrSlow = errors.New("it did not answer in time")

// Bounded runs one look that may wait for slow storage, and gives it up after a while;
// it then runs on by itself, and until it has ended the next one fails at once.
type Bounded[T any] struct {
	mu    sync.Mutex
	since time.Time // zero: none runs
}

// Run runs fn unless it still runs from another time.
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
