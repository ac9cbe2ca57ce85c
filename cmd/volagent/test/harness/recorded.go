package harness

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/csitest"
)

// Recorded is a host with the recording plugin. The recording plugin records every call, checks
// that the agent follows CSI, and fails when a test tells it to.
type Recorded struct {
	*Host
	Config csitest.Config
	Slow   bool // whether the plugin starts slowly
}

// StartRecorded starts a host whose plugin "rec" needs ControllerPublishVolume and NodeStageVolume.
// The argument deadline is the timeout of each call to the plugin.
func StartRecorded(t *testing.T, deadline string, tune func(*csitest.Config)) Recorded {
	t.Helper()
	h := NewRecorded(t, deadline, tune)
	h.Start("rec")
	return h
}

// NewRecorded creates the same host as StartRecorded but does not start the agent.
func NewRecorded(t *testing.T, deadline string, tune func(*csitest.Config)) Recorded {
	t.Helper()
	return NewRecordedOn(NewHost(t), deadline, tune)
}

// NewRecordedOn installs the recording plugin on an existing host.
func NewRecordedOn(host *Host, deadline string, tune func(*csitest.Config)) Recorded {
	host.T.Helper()
	h := Recorded{Host: host}
	h.Config = csitest.Config{
		Base: filepath.Join(h.Dir, "p"), NodeID: "test-host",
		Attach: true, Stage: true, Stats: true, CreateDelete: true, MultiWriter: true, AnyVolume: true,
	}
	if tune != nil {
		tune(&h.Config)
	}
	h.WritePlugin(deadline)
	h.T.Cleanup(h.ExpectNoViolations)
	return h
}

// WritePlugin writes the plugin file of the plugin "rec".
func (h Recorded) WritePlugin(deadline string) {
	h.T.Helper()
	self, err := os.Executable()
	h.Must(err)
	if h.Slow {
		// The script delays the start, because many real plugins need some time before they serve
		// calls.
		script := filepath.Join(h.Dir, "slow")
		h.Must(os.WriteFile(script, []byte("#!/bin/sh\nsleep 0.2\nexec "+self+"\n"), 0o755))
		self = script
	}
	file, err := h.Config.PluginFile("rec", self)
	h.Must(err)
	text := strings.TrimSuffix(strings.TrimSpace(string(file)), "}") +
		fmt.Sprintf(`, "timeouts": {"node": %q, "controller": %q}}`, deadline, deadline)
	h.Must(os.WriteFile(filepath.Join(h.Dir, "plugins.d", "rec.yaml"), []byte(text), 0o644))
}

// WithExpansion returns a function that configures a plugin. The function enables the calls that
// expand volumes and then calls tune.
func WithExpansion(tune func(*csitest.Config)) func(*csitest.Config) {
	return func(c *csitest.Config) {
		c.Expand, c.NodeExpand = true, true
		if tune != nil {
			tune(c)
		}
	}
}

// PublishOnly configures a plugin that needs neither ControllerPublishVolume nor NodeStageVolume.
var PublishOnly = func(c *csitest.Config) { c.Stage, c.Attach = false, false }

// WithSnapshots configures a plugin with snapshots. A snapshot becomes ready only at the second
// request.
func WithSnapshots(c *csitest.Config) {
	c.Snapshot, c.ListSnapshots, c.GetSnapshot, c.GroupSnapshot, c.Clone = true, true, true, true, true
	c.ReadyAfter, c.PageSize = 1, 2
}

// Register registers a volume that already exists in the plugin's storage.
func (h Recorded) Register(id, mode string) {
	h.T.Helper()
	file := filepath.Join(h.Dir, id+".yaml")
	h.Must(os.WriteFile(file, fmt.Appendf(nil,
		"id: %s\nplugin_id: rec\nexternal_id: ext/%s\ncapabilities:\n- {access_mode: %s, attachment_mode: file-system}\n", id, id, mode), 0o644))
	h.Volctl("volume", "register", file)
}

// RegisterAs registers the storage with the given external id under the given volume id.
func (h Recorded) RegisterAs(id, external string) Result {
	h.T.Helper()
	file := filepath.Join(h.Dir, id+".yaml")
	h.Must(os.WriteFile(file, []byte("id: "+id+"\nplugin_id: rec\nexternal_id: "+external+"\n"), 0o644))
	return h.Try("volume", "register", file)
}

// RegisterWith registers a volume of the plugin "rec" with the id "data". The argument contains
// additional lines of YAML.
func (h Recorded) RegisterWith(lines string) {
	h.T.Helper()
	file := filepath.Join(h.Dir, "data.yaml")
	h.Must(os.WriteFile(file, []byte("id: data\nplugin_id: rec\n"+lines), 0o644))
	h.Volctl("volume", "register", file)
}

// MultiWriterSpec returns the specification of a volume that several allocs on this host may claim
// at the same time.
func MultiWriterSpec(id, external string) api.VolumeSpec {
	return api.VolumeSpec{
		ID: id, PluginID: "rec", ExternalID: external,
		Capabilities: []api.Capability{{AccessMode: "single-node-multi-writer", AttachmentMode: "file-system"}},
	}
}

// AddFaults adds faults, which make calls of the plugin fail or misbehave.
func (h Recorded) AddFaults(f ...csitest.Fault) {
	h.T.Helper()
	_, err := h.Config.Faults().Add(f...)
	h.Must(err)
}

// Mark returns the current end of the plugin's journal. Calls and ExpectCalls can start at this
// mark.
func (h Recorded) Mark() int64 {
	h.T.Helper()
	all, err := csitest.ReadJournal(h.Config.JournalPath())
	h.Must(err)
	return all.Mark()
}

// Calls returns the calls since a mark that change state, as the plugin recorded them.
func (h Recorded) Calls(since int64) csitest.Calls {
	h.T.Helper()
	all, err := csitest.ReadJournal(h.Config.JournalPath())
	h.Must(err)
	return all.Since(since).Mutating()
}

// ExpectCalls asserts that the plugin received exactly the given calls since a mark, in this order.
func (h Recorded) ExpectCalls(since int64, want ...string) {
	h.T.Helper()
	if got := h.Calls(since).Methods(); !slices.Equal(got, want) {
		h.T.Fatalf("calls:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// ExpectNoViolations asserts that the plugin's journal shows no violation of CSI.
func (h Recorded) ExpectNoViolations() {
	j, err := csitest.LoadJournal(h.Config.JournalPath())
	if err != nil {
		h.T.Error(err)
	}
	for _, v := range j.Violations {
		h.T.Errorf("a rule of CSI was broken: %s", v)
	}
}

// StagingPath returns the staging path of a volume of the plugin "rec".
func (h Recorded) StagingPath(id string) string {
	return filepath.Join(h.Dir, "d", "csi", "rec", "staging", id)
}

// StartWriter starts a process that appends to a file in dir until the test ends, and returns the
// path of the file. The process keeps the file open.
func (h Recorded) StartWriter(dir string) string {
	h.T.Helper()
	file := filepath.Join(dir, "log")
	cmd := exec.Command("sh", "-c", "exec >> \"$0\"\nwhile :\ndo\necho line\nsleep 0.01\ndone", file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	h.Must(cmd.Start())
	h.T.Cleanup(func() {
		h.Must(cmd.Process.Kill())
		if err := cmd.Wait(); err == nil {
			h.T.Error("the writer ended by itself")
		}
	})
	h.Await("the first line", func() bool { return FileSize(file) > 0 })
	return file
}

// AwaitStatus waits until the status of volume "data" contains the given words.
func (h Recorded) AwaitStatus(words string) {
	h.T.Helper()
	h.Await("the status to say "+words, func() bool { return strings.Contains(h.Volctl("volume", "status", "data"), words) })
}

// AwaitFree waits until a volume is free, and returns how long it waited.
func (h Recorded) AwaitFree(id string) time.Duration {
	h.T.Helper()
	begun := time.Now()
	h.Volctl("wait", "--volume", id, "--for", "free", "--timeout", "60s")
	return time.Since(begun)
}

// ExpectClean waits until the volume is free, and asserts that the host has no leftovers of the
// volume. Such leftovers are mounts, directories, and files that the plugin wrote to the host's own
// disk because a mount was missing.
func (h Recorded) ExpectClean(id string) {
	h.T.Helper()
	h.Volctl("wait", "--volume", id, "--for", "free", "--timeout", "60s")
	h.ExpectNoMounts()
	h.Must(filepath.WalkDir(filepath.Join(h.Dir, "d", "csi", "rec"), func(path string, d fs.DirEntry, err error) error {
		switch rel := strings.TrimPrefix(path, h.Dir+"/d/csi/rec"); {
		case err != nil:
			return err
		case !d.IsDir(), strings.Count(rel, "/") > 1:
			h.T.Errorf("left behind: %s", path)
		}
		return nil
	}))
}

// UseTwice claims volume "data", writes a file, detaches the claim, and claims the volume again.
// The second claim must find the file. All steps must succeed although the plugin misbehaves.
// UseTwice returns the path of the second claim.
func (h Recorded) UseTwice(flags ...string) string {
	h.T.Helper()
	path := h.Volctl(append([]string{"volume", "claim", "data", "--alloc", "a", "--timeout", "60s"}, flags...)...)
	h.Must(os.WriteFile(filepath.Join(path, "file"), []byte("kept"), 0o644))
	h.Volctl("volume", "detach", "data", "a")
	h.ExpectClean("data")
	path = h.Volctl(append([]string{"volume", "claim", "data", "--alloc", "b", "--timeout", "60s"}, flags...)...)
	if raw, err := os.ReadFile(filepath.Join(path, "file")); string(raw) != "kept" {
		h.T.Errorf("the data is %q, %v", raw, err)
	}
	h.Volctl("volume", "detach", "data", "b")
	h.ExpectClean("data")
	return path
}

// daemons returns the FUSE daemons that serve this host's mounts.
func (h Recorded) daemons() []int { return h.PluginPIDs("CSITEST_FUSE_DAEMON=") }

// SignalDaemons sends a signal to all FUSE daemons of this host.
func (h Recorded) SignalDaemons(sig syscall.Signal) {
	h.T.Helper()
	pids := h.daemons()
	if len(pids) == 0 {
		h.T.Fatal("no FUSE daemon runs")
	}
	for _, pid := range pids {
		h.Must(syscall.Kill(pid, sig))
	}
}
