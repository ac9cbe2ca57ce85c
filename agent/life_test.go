package agent

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/spf13/pflag"

	"github.com/volagent/volagent/agent/config"
)

// newAgent returns an agent whose directories are all below dir.
func newAgent(t *testing.T, dir string) *Agent {
	t.Helper()
	file := filepath.Join(dir, "volagent.yaml")
	if err := os.WriteFile(file, []byte("stats_interval: 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fl := pflag.NewFlagSet("volagent", pflag.ContinueOnError)
	config.AddFlags(fl)
	args := []string{"--config", file}
	for _, flag := range []string{"data-dir", "runtime-dir", "plugin-dir", "volumes-dir"} {
		args = append(args, "--"+flag, filepath.Join(dir, flag))
	}
	if err := fl.Parse(args); err != nil {
		t.Fatal(err)
	}
	a, err := New(fl, io.Discard, Seams{})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestLife checks that New writes nothing, and that Open opens the socket. While an agent is open,
// a second agent must not open the same data dir. After Close, another agent can open it.
func TestLife(t *testing.T) {
	dir := t.TempDir()
	first := newAgent(t, dir)
	if names, err := filepath.Glob(filepath.Join(dir, "*-dir")); err != nil || len(names) != 0 {
		t.Errorf("New made %q, %v", names, err)
	}
	if err := first.Close(); err != nil {
		t.Errorf("Close without Open: %v", err)
	}

	for range 2 {
		a := newAgent(t, dir)
		if err := makeRuntimeDir(a.c.RuntimeDir); err != nil {
			t.Fatal(err)
		}
		if err := a.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(a.c.Socket); err != nil {
			t.Errorf("the socket: %v", err)
		}
		second := newAgent(t, dir)
		if err := second.Open(t.Context()); err == nil {
			t.Error("two agents opened one data dir")
		}
		if err := second.Close(); err != nil {
			t.Errorf("Close after a failed Open: %v", err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestTopic checks that every subscriber receives all news, and that subscribers are called in the
// order in which they were added.
func TestTopic(t *testing.T) {
	var news topic[string]
	var heard []string
	news.publish("before")
	for _, name := range []string{"a", "b"} {
		news.subscribe(func(what string) { heard = append(heard, name+" "+what) })
	}
	news.publish("one")
	news.publish("two")
	if want := []string{"a one", "b one", "a two", "b two"}; !slices.Equal(heard, want) {
		t.Errorf("heard %q, want %q", heard, want)
	}
}
