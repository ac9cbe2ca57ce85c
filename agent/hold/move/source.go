package move

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// asSource detaches the claims on the volume as a drain does, and reports the claims and mounts that keep
// the volume on this host. The hold ends with the last claim.
func (w *worker) asSource(ctx context.Context, m shared.Moving) error {
	if m.Released() {
		w.setGone(w.volume, w.id)
		return nil
	}
	if m.Move.Value.State != shared.MoveAccepted {
		return nil
	}
	if w.accepted.IsZero() {
		w.accepted = m.Move.Value.Since
		w.Events(volume.Event{
			Type: volume.EventVolumeLeaving, Volume: w.volume, Message: fmt.Sprintf("being moved to host %q; claims without a living owner are detached", w.to),
		})
	}

	remains := toRemains(w.Release(ctx, w.volume))
	_, err := w.decide(ctx, w.volume, w.from, w.to, func(who shared.Asker, m shared.Moving) (shared.Txn, error) {
		return m.Report(who, w.id, remains)
	})
	return err
}

// mostRemains limits how many claims and mounts the key of a move names.
const mostRemains = 20

// toRemains converts the claims and mounts that keep a volume on this host.
func toRemains(all volume.Occupancy) (out []shared.MoveRemains) {
	for _, o := range slices.Concat(all.Waiting, all.Left) {
		if len(out) == mostRemains {
			break
		}
		out = append(out, shared.MoveRemains{Alloc: o.Alloc, Reason: cmp.Or(o.Owner, o.Message), Remedy: o.Command})
	}
	return out
}
