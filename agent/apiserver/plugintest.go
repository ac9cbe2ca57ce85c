package apiserver

import (
	"context"
	"errors"
	"net/http"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/volume"
)

// Tests runs the tests of plugins.
type Tests interface {
	// TestPlugin calls each after every check. It returns when it has removed the traces of the
	// test. An error from each ends the test.
	TestPlugin(ctx context.Context, id string, q api.PluginTest, each func(api.PluginCheck) error) (api.PluginTestSummary, error)
}

// testPlugin sends one line after each check. The test ends when the caller disconnects.
func (s *Server) testPlugin(w http.ResponseWriter, r *http.Request) error {
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
