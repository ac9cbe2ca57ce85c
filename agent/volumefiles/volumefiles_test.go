package volumefiles

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// registry is a fake that stores the registered volumes. Registrations of volumes of the plugin
// "down" wait until ready is set.
type registry struct {
	mu     sync.Mutex
	ready  bool
	counts map[string]int
}

func (r *registry) register(_ context.Context, v volume.Volume, _ bool) (volume.Record, volume.Change, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[v.ID]++
	if v.ID == "refused" {
		return volume.Record{}, volume.Change{}, volume.Errorf(volume.ErrRefused, "not here").WithHint("elsewhere")
	}
	return volume.Record{}, volume.Change{}, nil
}

func (r *registry) view(id string) plugin.View {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id == "down" && !r.ready {
		return plugin.View{Known: true, State: api.PluginStarting}
	}
	return plugin.View{Known: true, Ready: true, State: api.PluginReady, Info: plugin.Info{Driver: "d"}}
}

func (r *registry) count(id string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts[id]
}

func start(t *testing.T, files map[string]string) (*Files, *registry, string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := &registry{counts: map[string]int{}}
	f := New(Options{Dir: dir, Register: r.register, View: r.view, Log: hclog.NewNullLogger()})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { f.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return f, r, dir
}

func text(id, plugin string) string {
	return "id: " + id + "\nplugin_id: " + plugin + "\nexternal_id: e-" + id + "\ncapabilities:\n  - access_mode: single-node-writer\n    attachment_mode: file-system\n"
}

// TestFiles checks which volumes Files registers, and which files it reports as problems.
func TestFiles(t *testing.T) {
	f, r, dir := start(t, map[string]string{
		"a.yaml": text("data", "p"), "b.yaml": text("data", "p"), "c.yaml": text("refused", "p"), "d.yaml": text("later", "down"),
		"e.yaml": "id: [\n", "f.yaml~": text("backup", "p"), ".g.yaml": text("hidden", "p"),
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()

	for id, want := range map[string]string{"data": "", "refused": "not here", "unknown": ""} {
		if err := f.Await(ctx, id); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", id, err, want)
		}
	}
	if n := r.count("data") + r.count("backup") + r.count("hidden") + r.count("later"); n != 1 {
		t.Errorf("%d registrations, want 1: %v", n, r.counts)
	}

	problems := map[string]string{}
	for _, p := range f.Problems() {
		problems[filepath.Base(p.Subject)] = p.Message + " | " + p.Command
	}
	for name, want := range map[string]string{"b.yaml": `volume "data" is already in ` + dir + "/a.yaml", "c.yaml": "not here | elsewhere", "e.yaml": "line "} {
		if !strings.Contains(problems[name], want) {
			t.Errorf("%s: %q, want %q", name, problems[name], want)
		}
	}
	if len(problems) != 3 {
		t.Errorf("problems: %q", problems)
	}

	waiting, stop := context.WithCancel(t.Context())
	stop()
	if err := f.Await(waiting, "later"); err == nil || !strings.Contains(err.Error(), "waits for plugin") {
		t.Errorf("a volume whose plugin is down: %v", err)
	}
	r.mu.Lock()
	r.ready = true
	r.mu.Unlock()
	f.Retry()
	if err := f.Await(ctx, "later"); err != nil || r.count("later") != 1 {
		t.Errorf("after the plugin is ready: %v", err)
	}
}

// TestReread checks that Files registers the volume in a changed file again. It also checks that
// Files reports an unreadable directory as one problem.
func TestReread(t *testing.T) {
	f, r, dir := start(t, map[string]string{"a.yaml": text("one", "p")})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := f.Await(ctx, "one"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "b.yaml"), []byte(text("two", "p")), 0o600); err != nil {
		t.Fatal(err)
	}
	f.Reread()
	for r.count("two") == 0 || r.count("one") < 2 {
		if ctx.Err() != nil {
			t.Fatalf("registrations: %v", r.counts)
		}
		time.Sleep(time.Millisecond)
	}
	if p := readDir(filepath.Join(dir, "a.yaml")); len(p) != 1 || !p[0].bad {
		t.Errorf("a file in place of the directory: %+v", p)
	}
	if p := readDir(filepath.Join(dir, "none")); len(p) != 0 {
		t.Errorf("no directory: %+v", p)
	}
}
