package crash_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/crasher"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/csitest"
	"github.com/volagent/volagent/volmgr/volume"
)

// crashHost is a host on which the agent or the plugin dies at a point that the test chooses.
type crashHost struct {
	harness.Recorded
	api *apiclient.Client
	// orders is the directory in which the test writes orders for the agent, and runs is the number
	// of orders so far.
	orders string
	runs   int
	binds  string // directory that contains the own directories of claims
	starts int    // number of plugin starts that the test expects
	seeded map[string]bool
	// orphans tells whether the plugin may have volumes without a record in the agent.
	orphans bool
	holder  *harness.Sleeper // a process that keeps a mount busy
}

// crashDeadline is the timeout of each call to the plugin. After a start the agent waits for this
// time, because earlier calls may still take effect.
const crashDeadline = "1s"

// patience is the time limit of every wait in the crash tests.
const patience = 100 * time.Second

func newCrashHost(t *testing.T, tune func(*csitest.Config)) *crashHost {
	t.Helper()
	// The plugin has a topology so that the test notices if a resumed create does not repeat the
	// topology of the first attempt.
	placed := func(c *csitest.Config) {
		c.Topology = map[string]string{"zone": "a"}
		if tune != nil {
			tune(c)
		}
	}
	h := &crashHost{Recorded: harness.NewRecorded(t, crashDeadline, placed), starts: 1, seeded: map[string]bool{}}
	h.api = apiclient.New(h.Socket())
	t.Cleanup(h.api.Close)
	h.orders, h.binds = filepath.Join(h.Dir, "o"), filepath.Join(h.Dir, "at")
	h.Must(os.Mkdir(h.orders, 0o700))
	h.Must(os.Mkdir(h.binds, 0o755))
	// Disable the bundled driver, because the crash tests do not need its process.
	h.Must(os.WriteFile(filepath.Join(h.Dir, "plugins.d", "local.yaml"), []byte("id: local\nsocket: "+h.Dir+"/none.sock\n"), 0o644))
	return h
}

func (h *crashHost) ctx() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 2*patience)
}

// launch starts an agent. If obeys is true, this is the crashing agent, and otherwise the real
// volagent program.
func (h *crashHost) launch(obeys bool) {
	h.T.Helper()
	program, env := filepath.Join(harness.BinDir, "volagent"), h.Env
	if obeys {
		self, err := os.Executable()
		h.Must(err)
		program, env = self, append(env, crasher.Env+"="+h.orders)
	}
	h.Cmd = exec.Command(program, h.Args()...)
	h.Cmd.Env, h.Cmd.Stderr = env, h.Log
	h.Must(h.Cmd.Start())
}

// up waits until the agent responds and the plugin is ready. It returns an error if the agent ends
// first.
func (h *crashHost) up() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		p, err := h.api.WaitPlugin(ctx, "rec", patience)
		switch {
		case err == nil && p.State == api.PluginReady:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("the plugin is not ready in time: %+v, %w", p, err)
		case harness.ProcessEnded(h.Cmd.Process.Pid):
			return errors.New("the agent has ended")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// order tells the agent at which point to die. The agent starts to count points from 1 again.
func (h *crashHost) order(o crasher.Order) {
	h.T.Helper()
	h.runs++
	o.Run = h.runs
	h.Must(o.Give(h.orders))
}

// onDisk reports whether the database file contains all committed changes, even without its log.
func (h *crashHost) onDisk() bool {
	h.T.Helper()
	path := filepath.Join(h.Dir, "d", "state.db")
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return true // no agent has run yet
	}
	h.Must(err)
	alone := filepath.Join(h.orders, "alone.db")
	h.Must(os.WriteFile(alone, raw, 0o600))
	synced, _, err := statedb.Inspect(alone)
	if err != nil {
		return false // the copy was made during a commit
	}
	told, _, err := statedb.Inspect(path)
	if err != nil {
		return false
	}
	generations := func(s statedb.View) map[string]uint64 {
		all := map[string]uint64{}
		for _, r := range s.Volumes() {
			all[r.Volume.ID] = r.Generation
		}
		return all
	}
	return maps.Equal(generations(told), generations(synced))
}

func (h *crashHost) disarm() {
	h.T.Helper()
	h.Must(os.Remove(filepath.Join(h.orders, "order")))
}

func (h *crashHost) points() []string {
	h.T.Helper()
	ps, err := crasher.PointsOf(h.orders, h.runs)
	h.Must(err)
	return ps
}

// dead waits until the agent has killed itself. It returns false if the agent is still alive after
// the time limit.
func (h *crashHost) dead() bool {
	h.T.Helper()
	ended := waited(h.Cmd)
	select {
	case <-ended:
		ws, ok := h.Cmd.ProcessState.Sys().(syscall.WaitStatus)
		if !ok || !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
			h.T.Fatalf("the agent ended by itself: %v", h.Cmd.ProcessState)
		}
		h.Cmd = nil
		return true
	case <-time.After(patience):
		h.Must(h.Cmd.Process.Kill())
		<-ended
		h.Cmd = nil
		return false
	}
}

// waited returns a channel that is closed when the process has ended.
func waited(cmd *exec.Cmd) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // ProcessState shows how the process ended
	}()
	return ended
}

// records returns the stored records and pending calls. It opens the database file itself, so no
// agent may be running.
func (h *crashHost) records() (all []volume.Record, debts []statedb.Leftover) {
	h.T.Helper()
	path := filepath.Join(h.Dir, "d", "state.db")
	h.Must(statedb.Check(path))
	db, err := statedb.Open(path, statedb.Options{})
	h.Must(err)
	all, debts = db.Volumes(), statedb.Leftovers.All(db)
	h.Must(db.Close())
	return all, debts
}

// claim claims volume "data" for an alloc.
func (h *crashHost) claim(alloc string, req api.ClaimRequest) error {
	return h.claimOf("data", alloc, req)
}

func (h *crashHost) claimOf(id, alloc string, req api.ClaimRequest) error {
	ctx, cancel := h.ctx()
	defer cancel()
	c, err := h.api.ClaimVolume(ctx, id, alloc, req, 2*patience)
	if err != nil {
		return err
	}
	if want := h.wantPath(id, alloc, req.At); c.Path != want {
		return fmt.Errorf("the claim's path is %s, want %s", c.Path, want)
	}
	return nil
}

func (h *crashHost) detach(id, alloc string) error {
	ctx, cancel := h.ctx()
	defer cancel()
	return h.api.DetachClaim(ctx, id, alloc, apiclient.DetachOptions{Wait: 2 * patience})
}

func (h *crashHost) deregister(id string, force bool) error {
	ctx, cancel := h.ctx()
	defer cancel()
	_, err := h.api.DeregisterVolume(ctx, id, force)
	return err
}

func (h *crashHost) remove(id string) error {
	ctx, cancel := h.ctx()
	defer cancel()
	_, err := h.api.DeleteVolume(ctx, id, "")
	return err
}

func (h *crashHost) registerData() error {
	ctx, cancel := h.ctx()
	defer cancel()
	_, err := h.api.RegisterVolume(ctx, harness.MultiWriterSpec("data", "ext/data"), false)
	return err
}

func (h *crashHost) create(id string) error {
	ctx, cancel := h.ctx()
	defer cancel()
	r, err := h.api.CreateVolume(ctx, harness.MultiWriterSpec(id, ""), false)
	if err == nil && (r.Volume.Spec.ExternalID != id || !r.Volume.Created) {
		err = fmt.Errorf("created as %+v", r.Volume)
	}
	return err
}

// seed writes a file to a volume through a temporary claim.
func (h *crashHost) seed(id string) {
	h.T.Helper()
	h.Must(h.claimOf(id, "seed", api.ClaimRequest{}))
	h.Must(os.WriteFile(filepath.Join(h.wantPath(id, "seed", ""), "file"), []byte(content(id)), 0o644))
	h.Must(h.detach(id, "seed"))
	h.seeded[id] = true
}

func content(id string) string { return "what was written to " + id }

func (h *crashHost) wantPath(id, alloc, at string) string {
	if at != "" {
		return at
	}
	return filepath.Join(h.Dir, "d/csi/rec/per-alloc", alloc, id)
}

// at creates an own directory for a claim and returns its path.
func (h *crashHost) at(name string) string {
	dir := filepath.Join(h.binds, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		h.T.Fatal(err)
	}
	return dir
}

// pluginStarts returns the number of times that the plugin was started.
func (h *crashHost) pluginStarts() int {
	h.T.Helper()
	j, err := csitest.LoadJournal(h.Config.JournalPath())
	h.Must(err)
	return j.Starts
}

// volume returns the agent's answer about a volume, or nil if the volume does not exist.
func (h *crashHost) volume(id string) *api.Volume {
	h.T.Helper()
	ctx, cancel := h.ctx()
	defer cancel()
	v, err := h.api.Volume(ctx, id)
	if harness.CodeOf(err) == api.CodeNotFound {
		return nil
	}
	h.Must(err)
	return v
}

// claimed reports whether an alloc has a claim on volume "data".
func (h *crashHost) claimed(alloc string) bool {
	h.T.Helper()
	ctx, cancel := h.ctx()
	defer cancel()
	_, err := h.api.Claim(ctx, "data", alloc)
	if harness.CodeOf(err) == api.CodeNotFound {
		return false
	}
	h.Must(err)
	return true
}

// mountsOf returns the lines of the mount table for the given allocs. Each line contains a mount
// id, so a remount changes the result.
func (h *crashHost) mountsOf(allocs []string) string {
	var out []string
	for line := range harness.Lines(h.Mounts()) {
		for _, a := range allocs {
			if strings.Contains(line, "/per-alloc/"+a+"/") || strings.Contains(line, " "+h.binds+"/"+a+" ") {
				out = append(out, line)
			}
		}
	}
	return strings.Join(out, "\n")
}

// stored returns the directory of each volume in the plugin's storage. The keys of the map are
// volume ids.
func (h *crashHost) stored() map[string]string {
	h.T.Helper()
	all := map[string]string{}
	files, err := filepath.Glob(filepath.Join(h.Config.Base, "volumes", "*", "volume.json"))
	h.Must(err)
	for _, file := range files {
		var v struct{ ID string }
		h.readJSON(file, &v)
		if _, twice := all[v.ID]; twice {
			h.T.Errorf("the plugin has volume %q twice", v.ID)
		}
		all[v.ID] = filepath.Dir(file)
	}
	return all
}

func (h *crashHost) readJSON(file string, v any) {
	h.T.Helper()
	raw, err := os.ReadFile(file)
	h.Must(err)
	h.Must(json.Unmarshal(raw, v))
}
