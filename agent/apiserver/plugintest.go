package apiserver

import (
	"context"
	"errors"
	"net/http"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/volume"
)

// testPlugin sends one line after each check. The test ends when the caller disconnects.
func testPlugin(s *Server, w http.ResponseWriter, r *http.Request) error {
	var q api.PluginTest
	if err := body(w, r, &q); err != nil {
		return err
	}

	id := r.PathValue("id")
	if _, ok := s.o.Plugins.Get(id); !ok {
		return noPlugin(id)
	}

	begun := false
	send := func(line api.PluginTestLine) error {
		if !begun {
			w.Header().Set("Content-Type", "application/x-ndjson")
			begun = true
		}
		err := api.EncodeJSON(w, line)
		flush(w)
		return err
	}

	sum, err := s.o.Tests.TestPlugin(r.Context(), id, q, func(c api.PluginCheck) error { return send(api.PluginTestLine{Check: &c}) })
	if errors.Is(context.Cause(r.Context()), volume.ErrStopping) && begun {
		panic(http.ErrAbortHandler) // the caller sees a broken connection and knows that the answer is incomplete
	}
	if err = s.withLog(err, id); err != nil && !begun {
		return err
	}

	last := api.PluginTestLine{Summary: &sum}
	if err != nil {
		last.Error = toAPI(err)
	}
	if err := send(last); err != nil {
		s.o.Log.Debug("cannot send the end of a test", "error", err)
	}
	return nil
}
