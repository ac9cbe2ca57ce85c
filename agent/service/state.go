package service

import (
	"context"
	"io"

	"github.com/volagent/volagent/agent/api"
)

// Backups makes backups of the agent's state and restores them.
type Backups interface {
	Backup(ctx context.Context) (copied io.ReadCloser, size int64, err error)
	Restore(ctx context.Context, r io.Reader, dry bool) (api.Restore, error)
}

// State answers requests to back up and restore the agent's state.
type State struct{ do Backups }

// Backup returns a copy of the state and its size. A backup contains sealed secrets, so it needs
// write permission.
func (s State) Backup(ctx context.Context, by Caller) (copied io.ReadCloser, size int64, err error) {
	if err := by.CheckWrite(); err != nil {
		return nil, 0, err
	}
	copied, size, err = s.do.Backup(ctx)
	return copied, size, asAPI(err)
}

// Restore adds the objects of a backup to the state. With dry, it only reports the result.
func (s State) Restore(ctx context.Context, by Caller, r io.Reader, dry bool) (api.Restore, error) {
	if err := by.CheckWrite(); err != nil {
		return api.Restore{}, err
	}
	out, err := s.do.Restore(ctx, r, dry)
	return out, asAPI(err)
}
