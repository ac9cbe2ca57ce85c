package store

import (
	"errors"
	"io/fs"
	"os"
)

// NoteFreeze records on disk that a volume's filesystem is about to be frozen.
func (s *StateDir) NoteFreeze(id string) error {
	f, err := os.OpenFile(s.Path(DirFrozen, id), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close(), SyncDir(s.Path(DirFrozen)))
}

// UnnoteFreeze removes the record of NoteFreeze. It does not sync, because an unnecessary thaw does
// no harm.
func (s *StateDir) UnnoteFreeze(id string) error {
	err := os.Remove(s.Path(DirFrozen, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Frozen lists the volumes that NoteFreeze recorded.
func (s *StateDir) Frozen() []string {
	list, err := os.ReadDir(s.Path(DirFrozen))
	if err != nil {
		s.Log.Error("cannot list a state directory", "error", err)
	}

	var ids []string
	for _, e := range list {
		if ValidID(e.Name()) {
			ids = append(ids, e.Name())
		}
	}

	return ids
}
