// Package store keeps the metadata and the data of volumes, snapshots and groups in the driver's
// state directory. The package comment of localdriver shows this directory in a tree.
package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
)

// Store contains the volumes, snapshots and groups of one state directory.
type Store struct {
	*StateDir
	*volumes
	*snapshots
}

// Open locks a state directory, reads its objects, and moves unfinished objects to trash.
func Open(ctx context.Context, dir string, log hclog.Logger) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the state directory: %w", err)
	}

	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot resolve the state directory: %w", err)
	}

	base := &StateDir{Root: root, Log: log}
	s := &Store{base,
		&volumes{StateDir: base, byID: map[string]Volume{}, byName: map[string]string{}, broken: map[string]error{}},
		&snapshots{StateDir: base, snaps: map[string]Snapshot{}, snapNames: map[string]string{}, brokenSnaps: map[string]error{},
			groups: map[string]Group{}, groupNames: map[string]string{}}}
	if err := s.acquire(ctx); err != nil {
		return nil, err
	}
	if err := s.load(); err != nil {
		return nil, errors.Join(err, s.Close())
	}

	s.loadSnapshots()
	return s, nil
}
