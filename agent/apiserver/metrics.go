package apiserver

import (
	"bytes"
	"net/http"
	"strconv"
)

func writeMetrics(s *Server, w http.ResponseWriter, _ *http.Request) error {
	var all bytes.Buffer // a failure then produces an error instead of half an answer
	if err := s.o.Metrics.Write(&all); err != nil {
		return err
	}

	w.Header().Set("Content-Type", s.o.Metrics.ContentType())
	w.Header().Set("Content-Length", strconv.Itoa(all.Len())) // avoids a chunked answer
	if _, err := w.Write(all.Bytes()); err != nil {
		s.o.Log.Debug("cannot send the metrics", "error", err)
	}
	return nil
}
