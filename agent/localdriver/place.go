package localdriver

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
)

// place makes something that exists in full or not at all.
//
//  1. tmp/ID is made and filled.
//  2. Its metadata is written there; all of it is on disk.
//  3. One rename puts it in place.
//
// What a failure leaves is removed until ctx is done; the next start removes the rest.
func (s *store) place(ctx context.Context, id, to, file string, meta any, fill func(dir string) error) error {
	tmp := s.path(dirTmp, id)
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return err
	}
	s.reach("made")
	err := fill(tmp)
	s.reach("filled")
	if err == nil {
		err = writeMeta(tmp, file, meta)
	}
	s.reach("written")
	if err == nil {
		err = s.move(id, dirTmp, to)
	}
	s.reach("placed")
	if err != nil {
		return errors.Join(err, s.discard(ctx, id))
	}
	return nil
}

// reach tells the tap, if there is one, that a point is reached.
func (s *store) reach(point string) {
	if s.tap != nil {
		s.tap(point)
	}
}

func writeVolume(dir string, v volume) error { return writeMeta(dir, metaFile, v) }

// writeMeta puts a file of metadata into a directory, or a new one in place of the old, and waits
// for the disk.
func writeMeta(dir, name string, meta any) error {
	raw, err := json.MarshalIndent(meta, "", "  ")
	if err != nil {
		return err
	}
	// One that a crash left half-written is written over.
	fresh := filepath.Join(dir, name+freshSuffix)
	f, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(raw, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(fresh, filepath.Join(dir, name)); err != nil {
		return err
	}
	return syncDir(dir)
}
