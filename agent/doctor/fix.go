package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// These are the possible outcomes of a fix.
const (
	Fixed  = "fixed"  // the problem is fixed
	Asked  = "asked"  // the agent has started the fix; the next examination shows the result
	Gone   = "gone"   // the finding no longer exists
	Left   = "left"   // the doctor cannot solve the problem; a person must do so
	Failed = "failed" // the fix failed
)

// Done is the outcome of a fix for one finding.
type Done struct {
	ID      string
	Outcome string
	Message string
}

// Fix applies the fixes of the given findings. It first examines the host again, and skips findings
// that no longer exist. Concurrent calls of Fix run one after another.
func (d *Doctor) Fix(ctx context.Context, ids []string) []Done {
	d.mending.Lock()
	defer d.mending.Unlock()

	found := d.Examine(ctx).Findings
	done := make([]Done, 0, len(ids))
	tries := retries{queue: d.o.Queue, by: map[string]<-chan struct{}{}}

	for _, id := range ids {
		i := slices.IndexFunc(found, func(f Finding) bool { return f.ID == id })
		switch {
		case i < 0:
			done = append(done, Done{id, Gone, "the finding no longer exists"})
		case found[i].repair.kind == nothing:
			done = append(done, Done{id, Left, "volctl doctor cannot fix this problem: follow the Do line of the finding"})
		case (found[i].repair.kind == wake || found[i].repair.kind == unguard) && d.o.Halt != "":
			done = append(done, Done{id, Failed, d.o.Halt})
		case found[i].repair.kind == wake:
			tries.begin(found[i].repair.volume)
			done = append(done, Done{id, Asked, "the agent retries the step now"})
		case found[i].repair.kind == compare:
			d.o.CompareHolds()
			done = append(done, Done{id, Asked, "the agent compares its holds with the cluster now"})
		default:
			done = append(done, d.repair(ctx, id, found[i].repair))
		}
	}

	tries.wait(ctx)
	return done
}

func (d *Doctor) repair(ctx context.Context, id string, m fix) Done {
	var err error
	message := ""
	switch m.kind {
	case remove:
		message, err = "removed "+m.path, d.remove(ctx, m.path)
	case renote:
		message, err = "the note agrees with the claim", d.o.Notes.Fix(m.note)
	case unguard:
		message, err = m.path+" is writable again", d.unguard(ctx, m.path)
	}

	if err != nil {
		return Done{id, Failed, err.Error()}
	}
	return Done{id, Fixed, message}
}

// removeWithin limits how long remove waits until it has locked the volumes that may use the path.
const removeWithin = 5 * time.Second

// remove removes an empty leftover. It first locks every volume that could use the path, so that no
// call for these volumes runs. It returns an error if a volume now uses the path.
func (d *Doctor) remove(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, removeWithin)
	defer cancel()

	last := func() error {
		if d.recorded().needed()[path] {
			return fmt.Errorf("cannot remove %s: a volume uses it now", path)
		}
		return d.o.Host.RemoveLeftover(path)
	}

	records := d.o.Records.Volumes()
	slices.SortFunc(records, func(a, b volume.Record) int { return strings.Compare(b.Volume.ID, a.Volume.ID) })
	// Volumes must be locked in ascending order of their ids. Each iteration wraps the lock of the
	// previous iteration, so the loop runs in descending order.
	for _, r := range records {
		if !uses(r.Volume, path) {
			continue
		}

		inner := last
		last = func() error { return d.o.Queue.Exclusive(ctx, r.Volume.ID, inner) }
	}

	return last()
}

// unguard removes a directory from all records that contain it, and so makes the directory
// writable. It locks each volume before it changes the volume's record. It fails if a claim uses
// the directory.
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

// claimedAt returns an error if a claim uses dir as its own directory. The directory must then stay
// guarded, so that programs cannot write to it while the volume is not mounted.
func claimedAt(records []volume.Record, dir string) error {
	for _, r := range records {
		for alloc, c := range r.Claims {
			if c.At == dir {
				return fmt.Errorf("cannot make %s writable: it is the directory of the claim of %q on volume %q", dir, alloc, r.Volume.ID)
			}
		}
	}

	return nil
}

// guarding maps each guarded directory to the ids of the volumes whose records contain it. The ids
// are sorted.
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

// uses reports whether the volume could have a mount at the path. The last component of each
// mount's path is derived from the volume's id.
func uses(v volume.Volume, path string) bool {
	return strings.HasSuffix(path, "/"+volume.VolumeComponent(v.ID)) || strings.HasSuffix(path, "/"+volume.PrivateComponent(v.ID))
}
