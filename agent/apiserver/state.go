package apiserver

import (
	"context"
	"io"
	"net/http"
	"strconv"

	"github.com/volagent/volagent/agent/api"
)

// State makes backups of the agent's state and restores them.
type State interface {
	Backup(ctx context.Context) (copied io.ReadCloser, size int64, err error)
	Restore(ctx context.Context, r io.Reader, dry bool) (api.Restore, error)
}

func (s *Server) backup(w http.ResponseWriter, r *http.Request) error {
	b, size, err := s.o.State.Backup(r.Context())
	if err != nil {
		return err
	}
	defer b.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	if _, err := io.Copy(w, b); err != nil {
		s.o.Log.Debug("cannot send a backup", "error", err)
		panic(http.ErrAbortHandler) // a caller who is still connected then sees that the answer is incomplete
	}

	return nil
}

func (s *Server) restore(w http.ResponseWriter, r *http.Request) error {
	dry, err := flag(r, "dry_run")
	if err != nil {
		return err
	}

	out, err := s.o.State.Restore(r.Context(), http.MaxBytesReader(w, r.Body, api.MaxState), dry)
	if err != nil {
		return err
	}
	return s.answer(w, out)
}
