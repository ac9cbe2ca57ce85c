package apiserver

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/event"
	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/agent/service"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestEventTypes checks that the list of events contains only the requested types, that n counts
// these events, and that the server refuses an unknown type by name.
func TestEventTypes(t *testing.T) {
	log := event.Open(event.Options{})
	log.Add(
		volume.Event{Type: volume.EventStaged, Volume: "a"}, volume.Event{Type: volume.EventWarning, Volume: "b"},
		volume.Event{Type: volume.EventStaged, Volume: "c"}, volume.Event{Type: volume.EventCreated, Volume: "d"},
	)
	s := New(Options{Service: service.New(service.Options{Events: log}), MayWrite: func(peer.Peer) bool { return false }, Log: hclog.NewNullLogger()})
	for query, want := range map[string]string{
		"":                             "a b c d",
		"type=staged":                  "a c",
		"type=staged&type=warning":     "a b c",
		"type=staged&type=warning&n=2": "b c",
		"type=staged&volume=c":         "c",
		"type=deleted":                 "",
	} {
		w := httptest.NewRecorder()
		s.http.Handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/events?"+query, nil))
		var got []string
		for line := range strings.Lines(w.Body.String()) {
			_, rest, _ := strings.Cut(line, `"volume":"`)
			got = append(got, rest[:1])
		}
		if w.Code != http.StatusOK || strings.Join(got, " ") != want {
			t.Errorf("%s: %d, %q, want %q", query, w.Code, got, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // a server that does not refuse the request then stops following
	for _, query := range []string{"type=stagde&type=other", "type=staged&type=stagde&follow=true"} {
		w := httptest.NewRecorder()
		s.http.Handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/events?"+query, nil))
		if got := w.Body.String(); w.Code != http.StatusBadRequest || !strings.Contains(got, `\"stagde\"`) || !strings.Contains(got, "docs/troubleshooting.md") {
			t.Errorf("%s: %d, %s", query, w.Code, got)
		}
	}
}
