package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// mend is what can be done about a finding. None of it unmounts anything, or removes
// what anybody wrote.
type mend struct {
	kind   mendKind
	path   string
	volume string // a record's key
	note   NoteFile
}

type mendKind string

const (
	nothing mendKind = ""
	wake    mendKind = "wake"    // try at once what a volume's next step is
	remove  mendKind = "remove"  // a leftover that is empty
	renote  mendKind = "renote"  // bring a claim's note in line with its record
	unguard mendKind = "unguard" // let a directory be written to that volumes were mounted at
)

// Outcomes of a Mend.
const (
	Mended = "fixed"  // it was done
	Asked  = "asked"  // it was begun; the next examination tells how it went
	Gone   = "gone"   // there is no such finding any more
	Left   = "left"   // there is nothing that can be done about it without a person
	Failed = "failed" // it could not be done
)

// Done is what became of one finding.
type Done struct {
	ID      string
	Outcome string
	Message string
}

// Mend does what can be done about findings, after it has examined everything anew: of
// what has changed meanwhile nothing is done. Two Mends go one after the other.
func (d *Doctor) Mend(ctx context.Context, ids []string) []Done {
	d.mending.Lock()
	defer d.mending.Unlock()
	found := d.Examine(ctx).Findings
	done := make([]Done, 0, len(ids))
	tries := retries{queue: d.o.Queue, by: map[string]<-chan struct{}{}}
	for _, id := range ids {
		i := slices.IndexFunc(found, func(f Finding) bool { return f.ID == id })
		switch {
		case i < 0:
			done = append(done, Done{id, Gone, "there is no such finding any more"})
		case found[i].mend.kind == nothing:
			done = append(done, Done{id, Left, "nothing is done about it but by a person"})
		case (found[i].mend.kind == wake || found[i].mend.kind == unguard) && d.o.Halt != "":
			done = append(done, Done{id, Failed, d.o.Halt})
		case found[i].mend.kind == wake:
			tries.begin(found[i].mend.volume)
			done = append(done, Done{id, Asked, "it is tried again"})
		default:
			done = append(done, d.mend(ctx, id, found[i].mend))
		}
	}
	tries.wait(ctx)
	return done
}

func (d *Doctor) mend(ctx context.Context, id string, m mend) Done {
	var err error
	message := ""
	switch m.kind {
	case remove:
		message, err = "removed "+m.path, d.remove(ctx, m.path)
	case renote:
		message, err = "the note is as the claim is", d.o.Notes.Mend(m.note)
	case unguard:
		message, err = m.path+" can be written to", d.unguard(ctx, m.path)
	}
	if err != nil {
		return Done{id, Failed, err.Error()}
	}
	return Done{id, Mended, message}
}

// retryWithin is how long the first news of other tries are waited for, of all together.
const retryWithin = 5 * time.Second

// retries are volumes whose next step is tried at once.
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

// wait waits a while for how they go, so that the next examination can tell.
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

// removeWithin is how long a call for a volume that may need the path is waited for.
const removeWithin = 5 * time.Second

// remove removes an empty leftover while no call runs for any volume that could use
// its path, and only if no record explains it by then.
func (d *Doctor) remove(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, removeWithin)
	defer cancel()
	last := func() error {
		p := Picture{Root: d.o.Root, Debts: d.o.Debts(), Tests: d.o.Tests()}
		for _, r := range d.o.Records.Volumes() {
			p.Volumes = append(p.Volumes, Volume{Record: r})
		}
		if p.explained()[path] {
			return fmt.Errorf("cannot remove %s: a volume uses it now", path)
		}
		return d.o.Host.RemoveLeftover(path)
	}
	records := d.o.Records.Volumes()
	slices.SortFunc(records, func(a, b volume.Record) int { return strings.Compare(b.Volume.ID, a.Volume.ID) })
	for _, r := range records { // the first one is held last: all take them in the order of their ids
		if !uses(r.Volume, path) {
			continue
		}
		inner := last
		last = func() error { return d.o.Queue.Exclusive(ctx, r.Volume.ID, inner) }
	}
	return last()
}

// unguard has a directory written to again, and forgotten by all records that name it:
// the last one's turn clears it. A volume's turn is while no call runs for it, and only
// if no claim is bound there by then.
func (d *Doctor) unguard(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, removeWithin)
	defer cancel()
	for _, id := range guarding(d.o.Records.Volumes())[dir] {
		err := d.o.Queue.Exclusive(ctx, id, func() error {
			if err := claimedAt(d.o.Records.Volumes(), dir); err != nil {
				return err
			}
			return d.o.Guards.Lift(ctx, dir, id)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// claimedAt is why a directory stays as it is, nil if no claim has it.
func claimedAt(records []volume.Record, dir string) error {
	for _, r := range records {
		for alloc, c := range r.Claims {
			if c.At == dir {
				return fmt.Errorf("%s stays as it is: it is of the claim of %q on volume %q", dir, alloc, r.Volume.ID)
			}
		}
	}
	return nil
}

// guarding are the directories that records name as made to refuse writes, with the
// volumes that name them, in order.
func guarding(records []volume.Record) map[string][]string {
	by := map[string][]string{}
	for _, r := range records {
		for _, dir := range r.Guards {
			by[dir] = append(by[dir], r.Volume.ID)
		}
	}
	for _, ids := range by {
		slices.Sort(ids)
	}
	return by
}

// uses reports whether a volume would be mounted at a path: they end in its component.
func uses(v volume.Volume, path string) bool {
	return strings.HasSuffix(path, "/"+volume.VolumeComponent(v.ID)) || strings.HasSuffix(path, "/"+volume.PrivateComponent(v.ID))
}
