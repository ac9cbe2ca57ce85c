package owndir

import (
	"context"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/volume"
)

// Tidy removes the leftovers of an earlier boot below the mount directories.
func (d Dirs) Tidy(log hclog.Logger) {
	if err := d.Manager.Tidy(); err != nil {
		log.Warn("something was left where volumes are mounted, from before this boot", "error", err)
	}
}

// RepairModes restricts the mode of mount directories that an earlier version left open to every
// user.
func (d Dirs) RepairModes(ctx context.Context, log hclog.Logger) {
	if err := d.Manager.RepairModes(ctx, d.all()); err != nil {
		log.Warn("cannot set the modes of directories that volumes are mounted in; other users may reach paths that are meant for root alone, or miss their volumes", "error", err)
	}
}

// DropLeftover deletes a leftover record once all its steps are undone. Before that, it makes the
// guarded directories of the record writable again. It returns the id of a volume of the same
// storage that may be waiting for the deletion, or "".
func (d Dirs) DropLeftover(r volume.Record, log hclog.Logger) (waiting string) {
	if err := d.undone(r); err != nil {
		log.Warn("a directory still refuses writes although no volume is mounted there any more; to make it writable: chattr -i DIRECTORY", "volume", r.Volume.ID, "error", err)
	}
	waiting, err := d.Records.Settle(context.Background(), r)
	if err != nil {
		log.Error("cannot drop the record of a forced deregister, whose calls are all made; it is tried again", "volume", r.Volume.ID, "error", err)
	}

	return waiting
}
