package apiserver

import (
	"bufio"
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

// TestEventTypesFollowed checks that a caller that follows the events receives only new events of the
// requested type.
func TestEventTypesFollowed(t *testing.T) {
	log := event.Open(event.Options{})
	s := New(Options{Service: service.New(service.Options{Events: log}), MayWrite: func(peer.Peer) bool { return false }, Log: hclog.NewNullLogger()})
	server := httptest.NewServer(s.http.Handler)
	defer server.Close()

	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/v1/events?follow=true&type=staged", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }() // this also ends the handler

	log.Add(volume.Event{Type: volume.EventWarning, Volume: "a"})
	log.Add(volume.Event{Type: volume.EventStaged, Volume: "b"})
	line, err := bufio.NewReader(answer.Body).ReadString('\n')
	if err != nil || !strings.Contains(line, `"volume":"b"`) {
		t.Errorf("the first event is %q, %v", line, err)
	}
}
