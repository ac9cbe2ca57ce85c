package localdriver

import (
	"errors"
	"io/fs"
	"os"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/request"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// admitPath restricts every access mode except SINGLE_NODE_MULTI_WRITER to one target, as the table
// under NodePublishVolume in the CSI specification requires. A volume in such a mode gets no second
// target. A volume that has a target in such a mode gets no other target in any mode.
//
// The mount table does not show the mode of the existing target, so a file records it. The first
// target creates or removes the file. The file therefore matters only while a target exists. It
// outlives the driver. It need not survive a reboot of the host, so it is not synced.
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
	// A full disk is no reason to block access to existing data.
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.d.log.Warn("cannot note how a volume is published; a second target may be let pass", "volume_id", t.v.ID, "error", err)
	}

	return nil
}
