package store

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
)

// place makes an object that exists completely or not at all.
//
//  1. It makes tmp/ID and fills it.
//  2. It writes the metadata there and syncs all of it to disk.
//  3. It moves the directory to its place with one rename.
//
// After a failure, it removes the leftovers until ctx is done. The next start removes the rest.
func (s *StateDir) place(ctx context.Context, id, to, file string, meta any, fill func(dir string) error) error {
	tmp := s.Path(DirTmp, id)
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return err
	}

	s.Reach("made")
	err := fill(tmp)
	s.Reach("filled")
	if err == nil {
		err = writeMeta(tmp, file, meta)
	}
	s.Reach("written")
	if err == nil {
		err = s.Move(id, DirTmp, to)
	}
	s.Reach("placed")
	if err != nil {
		return errors.Join(err, s.discard(ctx, id))
	}

	return nil
}

// WriteVolume replaces a volume's metadata in dir and waits until it is on disk.
func WriteVolume(dir string, v Volume) error { return writeMeta(dir, MetaFile, v) }

// writeMeta writes a metadata file into a directory and waits until it is on disk. It replaces an
// existing file.
func writeMeta(dir, name string, meta any) error {
	raw, err := json.MarshalIndent(meta, "", "  ")
	if err != nil {
		return err
	}

	// If a crash left an incomplete file at this path, it is overwritten.
	fresh := filepath.Join(dir, name+FreshSuffix)
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

	return SyncDir(dir)
}
