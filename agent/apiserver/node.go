package apiserver

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/volagent/volagent/agent/api"
)

func getHealth(s *Server, _ *request) action {
	return func() (any, error) { return s.o.Node.Health(), nil }
}

func getNode(s *Server, r *request) action {
	return func() (any, error) { return s.o.Node.Status(r.Context(), r.by), nil }
}

func drainNode(s *Server, r *request) action {
	wait := r.duration("wait")
	return func() (any, error) { return s.o.Node.Drain(r.Context(), r.by, wait) }
}

func undrainNode(s *Server, r *request) action {
	return func() (any, error) { return s.o.Node.Undrain(r.Context(), r.by) }
}

func examine(s *Server, r *request) action {
	return func() (any, error) { return s.o.Doctor.Examine(r.Context()), nil }
}

func fix(s *Server, r *request) action {
	ask := body[api.DoctorFix](r)
	return func() (any, error) { return s.o.Doctor.Fix(r.Context(), r.by, ask) }
}

func takeBackup(s *Server, r *request) action {
	return func() (any, error) {
		b, size, err := s.o.State.Backup(r.Context(), r.by)
		if err != nil {
			return nil, err
		}
		defer b.Close()

		r.w.Header().Set("Content-Type", "application/octet-stream")
		r.w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		if _, err := io.Copy(r.w, b); err != nil {
			s.unsent("a backup", err)
			panic(http.ErrAbortHandler) // if the caller is still connected, the broken connection shows that the answer is incomplete
		}
		return nil, nil
	}
}

func restoreBackup(s *Server, r *request) action {
	dry, in := r.flag("dry_run"), http.MaxBytesReader(r.w, r.Body, api.MaxState)
	return func() (any, error) { return s.o.State.Restore(r.Context(), r.by, in, dry) }
}

func writeMetrics(s *Server, r *request) action {
	return func() (any, error) {
		var all bytes.Buffer // buffers the answer, so that a failure produces an error instead of half an answer
		if err := s.o.Metrics.Write(&all); err != nil {
			return nil, err
		}

		r.w.Header().Set("Content-Type", s.o.Metrics.ContentType())
		r.w.Header().Set("Content-Length", strconv.Itoa(all.Len())) // avoids a chunked answer
		_, err := r.w.Write(all.Bytes())
		s.unsent("the metrics", err)
		return nil, nil
	}
}

// listEvents sends the events, one in each line. With follow, it continues until the caller
// disconnects.
func listEvents(s *Server, r *request) action {
	n, since, follow := r.number("n", 0), r.time("since"), r.flag("follow")
	return func() (any, error) {
		out := lines{w: r.w}
		out.begin()
		seq := s.sendEvents(r, &out, since, n)
		for follow {
			flush(r.w)
			evs, last, more := s.o.Events.After(r.text("volume"), seq)
			seq = last
			for _, e := range evs {
				if out.send(e) != nil {
					return nil, nil //nolint:nilerr // the caller has disconnected
				}
			}

			flush(r.w)
			select {
			case <-more:
			case <-r.Context().Done():
				return nil, nil
			}
		}

		return nil, nil
	}
}

// sendEvents sends the stored events, and returns the number of the last event. If it fails, it
// breaks the connection, because the answer has begun and cannot report an error.
func (s *Server) sendEvents(r *request, out *lines, since time.Time, n int) (last uint64) {
	gone := errors.New("the caller is gone")
	last, err := s.o.Events.Read(r.Context(), r.text("volume"), since, n, func(e api.Event) error {
		if out.send(e) != nil {
			return gone
		}
		return nil
	})

	if err != nil {
		if !errors.Is(err, gone) && r.Context().Err() == nil {
			s.o.Log.Warn("cannot send the events", "error", err)
		}
		panic(http.ErrAbortHandler)
	}
	return last
}
