package localdriver

import (
	"errors"
	"io/fs"
	"os"
)

// admitPath keeps every access mode but SINGLE_NODE_MULTI_WRITER to one target, as the table
// under NodePublishVolume in the CSI specification asks: neither may a volume in such a mode get a
// second target, nor one that has a target in such a mode get another in any mode.
//
// The mount table does not show the mode of the target that is there. It is noted in a file, which
// the first target sets or removes, so that it matters only while there is one. That outlives the
// driver; it need not outlive the host, so nothing waits for the disk.
func (t *target) admitPath(a access, staging string) error {
	uses, err := t.uses()
	if err != nil {
		return err
	}
	note := t.d.store.path(dirVolumes, t.v.ID, exclusiveFile)
	for _, u := range uses {
		if u.point == staging || u.point == t.path {
			continue
		}
		if !a.manyPaths {
			return preconditionf("volume %q is published at %q, and its access mode allows one target", t.v.ID, u.point)
		}
		if _, err := os.Lstat(note); err == nil {
			return preconditionf("volume %q is published at %q in an access mode that allows one target", t.v.ID, u.point)
		}
		return nil
	}
	if a.manyPaths {
		err = os.Remove(note)
	} else {
		err = os.WriteFile(note, nil, 0o600)
	}
	// A full disk is no reason to keep anybody from data that is there.
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.d.log.Warn("cannot note how a volume is published; a second target may be let pass", "volume_id", t.v.ID, "error", err)
	}
	return nil
}
