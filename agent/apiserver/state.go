package apiserver

import (
	"io"
	"net/http"
	"strconv"

	"github.com/volagent/volagent/agent/api"
)

func takeBackup(s *Server, w http.ResponseWriter, r *http.Request) error {
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

func restoreBackup(s *Server, w http.ResponseWriter, r *http.Request) error {
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
