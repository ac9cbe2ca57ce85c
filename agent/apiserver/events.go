package apiserver

import (
	"errors"
	"net/http"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/volume"
)

// listEvents sends the events as JSON, one object in each line.
func listEvents(s *Server, w http.ResponseWriter, r *http.Request) error {
	n, err := number(r, "n", 0)
	if err != nil {
		return err
	}

	follow, err := flag(r, "follow")
	if err != nil {
		return err
	}

	var since time.Time
	if raw := r.URL.Query().Get("since"); raw != "" {
		if since, err = time.Parse(time.RFC3339Nano, raw); err != nil {
			return volume.Errorf(volume.ErrInvalid, "since=%q is not a time such as 2006-01-02T15:04:05Z", raw)
		}
	}

	id := r.URL.Query().Get("volume")
	w.Header().Set("Content-Type", "application/x-ndjson")
	gone := errors.New("the caller is gone")
	sent := func(e api.Event) bool { return api.EncodeJSON(w, e) == nil }
	seq, err := s.o.Events.Read(r.Context(), id, since, n, func(e api.Event) error {
		if !sent(e) {
			return gone
		}
		return nil
	})

	if err != nil {
		// The answer has begun, so the caller can learn about the error only from a broken
		// connection.
		if !errors.Is(err, gone) && r.Context().Err() == nil {
			s.o.Log.Warn("cannot send the events", "error", err)
		}
		panic(http.ErrAbortHandler)
	}

	for follow {
		flush(w)
		evs, more := s.o.Events.After(seq)
		for _, e := range evs {
			seq = e.Seq
			if (id == "" || e.Volume == id) && !sent(e) {
				return nil
			}
		}

		flush(w)
		select {
		case <-more:
		case <-r.Context().Done():
			return nil
		}
	}

	return nil
}
