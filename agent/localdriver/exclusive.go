package localdriver

import (
	"errors"
	"io/fs"
	"os"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/request"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// admitPath allows only one target for a volume, unless its access mode is
// SINGLE_NODE_MULTI_WRITER. The table under NodePublishVolume in the CSI specification requires
// this. A volume with any other mode gets no second target. A volume that already has a target with
// such a mode gets no further target, in any mode.
//
// The mount table does not show the mode of the existing target, so a file records that the target
// must be the only one. The first target creates or removes the file. The file has a meaning only
// while a target exists. It must survive a restart of the driver, but not a reboot of the host, so
// it is not synced.
func (t *target) admitPath(a request.Access, staging string) error {
	uses, err := t.uses()
	if err != nil {
		return err
	}

	note := t.d.store.Path(store.DirVolumes, t.v.ID, store.ExclusiveFile)
	for _, u := range uses {
		if u.Point == staging || u.Point == t.path {
			continue
		}
		if !a.ManyPaths {
			return csierr.Preconditionf("volume %q is published at %q, and its access mode allows one target", t.v.ID, u.Point)
		}
		if _, err := os.Lstat(note); err == nil {
			return csierr.Preconditionf("volume %q is published at %q in an access mode that allows one target", t.v.ID, u.Point)
		}

		return nil
	}

	if a.ManyPaths {
		err = os.Remove(note)
	} else {
		err = os.WriteFile(note, nil, 0o600)
	}
	// Continue after an error, because a full disk must not block the access to existing data.
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.d.log.Warn("cannot note how a volume is published; a second target may be let pass", "volume_id", t.v.ID, "error", err)
	}

	return nil
}
