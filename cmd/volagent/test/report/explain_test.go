package report_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// status contains the fields of a volume's JSON status that the tests need.
type status struct {
	State, Summary string
	DataSafe       string `json:"data_safe"`
	StillMounted   string `json:"still_mounted"`
	Attempt        struct {
		Step, Code, Message, Waits, Cause, Fix, Else, Alloc string
		Unknown                                             bool `json:"outcome_unknown"`
		Tries, Index, Of                                    int
		First, Next                                         time.Time
		HeldBy                                              []string `json:"held_by"`
		PluginLog                                           []string `json:"plugin_log"`
		Running                                             bool
	}
}

func statusOf(h *harness.Host, id string) status {
	h.T.Helper()
	return harness.Decode[status](h, "volume", "status", id)
}

// types returns the types of the given events, in order.
func types(evs []harness.Event) (all []string) {
	for _, e := range evs {
		all = append(all, e.Type)
	}
	return all
}

// TestBusyUnmount checks the status of a detach that waits for a process. The status shows the
// step, the outcome, the message, the number of tries, the process, and a fix. The fix must work.
func TestBusyUnmount(t *testing.T) {
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	h.Register("other", "single-node-writer")
	path := h.Volctl("volume", "claim", "data", "--alloc", "web")
	h.Volctl("volume", "claim", "other", "--alloc", "web")
	holder := exec.Command("sleep", "1000")
	holder.Dir = path
	holder.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	h.Must(holder.Start())
	ended := make(chan error, 1)
	go func() { ended <- holder.Wait() }()
	held := fmt.Sprintf("pid %d sleep, cwd %q", holder.Process.Pid, path)
	if cgroup, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", holder.Process.Pid)); err == nil && strings.Contains(string(cgroup), ".s") {
		held = fmt.Sprintf("pid %d sleep", holder.Process.Pid) // the sleeper runs in a systemd unit
	}

	r := h.Try("volume", "detach", "data", "web", "--timeout", "3s")
	if r.Code != 5 || !strings.Contains(r.Err, held) || !strings.Contains(r.Err, "NodeUnpublishVolume") || !strings.Contains(r.Err, "hint: ") {
		t.Errorf("exit %d, stderr %q", r.Code, r.Err)
	}
	h.Await("the volume to be stuck", func() bool { return statusOf(h.Host, "data").State == "stuck" })
	st := statusOf(h.Host, "data")
	at := st.Attempt
	if st.DataSafe != "yes" || st.StillMounted != "yes" || at.Step != "NodeUnpublishVolume" || at.Index != 4 || at.Of != 6 || at.Alloc != "web" ||
		at.Code == "" || at.Message == "" || at.Tries < 3 || at.First.IsZero() || at.Next.IsZero() ||
		len(at.HeldBy) == 0 || !strings.HasPrefix(at.HeldBy[0], held) || at.Fix != fmt.Sprintf("kill %d", holder.Process.Pid) || at.Else == "" {
		t.Errorf("the status is %+v", st)
	}
	screen := h.Volctl("volume", "status", "data", "-o", "wide")
	for _, want := range []string{
		"× data  stuck: unmounting", "data safe: yes   still mounted: yes", "4/6 NodeUnpublishVolume for web → ", "(" + at.Code,
		at.Message, "×, first ", ", next ", "Held by  " + held, "Fix      " + at.Fix, "Else     ",
	} {
		if !strings.Contains(screen, want) {
			t.Errorf("the screen has no %q:\n%s", want, screen)
		}
	}
	node := h.Volctl("node", "status")
	for _, want := range []string{"1 problem", "stuck", "unmounting, busy: " + held, "→ volctl volume status data", "Unaffected: 1 volume\n"} {
		if !strings.Contains(node+"\n", want) {
			t.Errorf("the node's screen has no %q:\n%s", want, node)
		}
	}
	h.Must(exec.Command("sh", "-c", at.Fix).Run())
	if err := <-ended; err == nil {
		t.Error("the holder ended by itself")
	}
	h.Volctl("wait", "--volume", "data", "--for", "free", "--timeout", "60s")
	h.Volctl("volume", "detach", "other", "web")
	h.ExpectNoMounts()
}

// TestPluginLog checks that a failed claim and the status quote the last lines of the plugin's log.
// The quoted lines must not contain a secret that the running agent or an earlier agent has sent to
// the plugin.
func TestPluginLog(t *testing.T) {
	const planted = "pl4nt3d-in-the-l0g"
	h := harness.StartRecorded(t, "10s", nil)
	h.Must(os.WriteFile(filepath.Join(h.Dir, "secret"), []byte(planted), 0o600))
	file := filepath.Join(h.Dir, "data.yaml")
	h.Must(os.WriteFile(file, []byte("id: data\nplugin_id: rec\nexternal_id: x\nsecrets:\n  key: {file: "+h.Dir+"/secret}\n"), 0o644))
	h.Volctl("volume", "register", file)
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	h.Volctl("volume", "detach", "data", "a")
	h.Kill()
	h.Start("rec") // the new agent has not read the secret yet
	log, err := os.OpenFile(h.Volctl("plugin", "status", "rec", "-o", "go-template={{.log_file}}"), os.O_APPEND|os.O_WRONLY, 0)
	h.Must(err)
	_, err = log.WriteString("first line\ncannot log in with " + planted + "\nno such disk\n")
	h.Must(err)
	h.Must(log.Close())

	h.AddFaults(csitest.Fault{Method: csitest.NodeStage, Code: codes.InvalidArgument, Message: "bad disk", Times: -1})
	// The new agent has made no call yet.
	status := h.Volctl("plugin", "status", "rec", "-o", "json")
	r := h.Try("volume", "claim", "data", "--alloc", "a", "-o", "json")
	var e struct {
		Error struct {
			Code, Message, Hint string
			Details             map[string]string
		}
	}
	h.Must(json.Unmarshal([]byte(r.Err), &e))
	want := map[string]string{
		"step": "NodeStageVolume", "grpc_code": "InvalidArgument", "plugin_said": "bad disk", "retry": "change", "tries": "1",
		"plugin_log": "first line\ncannot log in with ***\nno such disk",
	}
	for k, v := range want {
		if e.Error.Details[k] != v {
			t.Errorf("%s is %q, want %q", k, e.Error.Details[k], v)
		}
	}
	if r.Code != 1 || e.Error.Hint == "" || e.Error.Details["first"] == "" {
		t.Errorf("exit %d, %+v", r.Code, e)
	}
	r2 := h.Try("volume", "claim", "data", "--alloc", "b")
	if r2.Code != 1 || !strings.Contains(r2.Err, "NodeStageVolume: invalid request: bad disk") || !strings.Contains(r2.Err, "plugin log: no such disk\n") {
		t.Errorf("exit %d, stderr %q", r2.Code, r2.Err)
	}
	h.Volctl("wait", "--volume", "data", "--for", "free", "--timeout", "30s")
	h.Volctl("volume", "claim", "data", "--alloc", "c", "--no-wait")
	h.Await("the failure", func() bool { return statusOf(h.Host, "data").Attempt.Code == "InvalidArgument" })
	screen := h.Volctl("volume", "status", "data")
	if !strings.Contains(screen, "Log      no such disk\n") || !strings.Contains(screen, `Said     "bad disk"`) {
		t.Errorf("the screen is\n%s", screen)
	}
	for _, said := range []string{status, r.Err, r2.Err, screen, h.Volctl("plugin", "logs", "rec")} {
		if strings.Contains(said, planted) || !strings.Contains(said, "no such disk") {
			t.Errorf("the secret stands in, or the log does not:\n%s", said)
		}
	}
	h.Must(h.Config.Faults().Clear())
	h.Volctl("volume", "detach", "data", "--all")
}

// TestEvents checks that every transition causes an event, and that the numbers of the events
// follow the order of the transitions. The events must survive a SIGKILL and a normal stop of the
// agent.
func TestEvents(t *testing.T) {
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	h.Register("other", "single-node-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	h.Volctl("volume", "claim", "other", "--alloc", "a")
	if r := h.Try("volume", "claim", "data", "--alloc", "b"); r.Code != 4 {
		t.Errorf("exit %d, stderr %q", r.Code, r.Err)
	}
	before := harness.Events(h.Host)
	last := before[len(before)-1]
	h.Await("the events to be in files", func() bool { return strings.Contains(h.ReadFiles("d/events/*"), fmt.Sprintf(`"seq":%d,`, last.Seq)) })
	h.Kill()
	h.Start("rec")
	if got := harness.Events(h.Host)[:len(before)]; !slices.Equal(got, before) {
		t.Errorf("after kill -9 the events are\n%+v, were\n%+v", got, before)
	}
	h.Volctl("volume", "detach", "data", "a")
	h.Must(h.Signal(syscall.SIGTERM))
	h.Start("rec")
	all := harness.Events(h.Host)
	for i, e := range all {
		if i > 0 && (e.Seq != all[i-1].Seq+1 || e.Time.Before(all[i-1].Time)) {
			t.Errorf("after %+v comes %+v", all[i-1], e)
		}
	}
	want := []string{
		"registered", "claim-pending", "attached", "staged", "published", "claim-mounted", "claim-refused",
		"claim-unpublishing", "unpublished", "unstaged", "claim-node-detached", "detached", "claim-controller-detached", "claim-detached",
	}
	if got := types(harness.Events(h.Host, "--volume", "data")); !slices.Equal(got, want) {
		t.Errorf("the events of the volume are\n%q, want\n%q", got, want)
	}
	counts := map[string]int{}
	for _, typ := range types(all) {
		counts[typ]++
	}
	if counts["agent-started"] != 3 || counts["agent-stopped"] != 1 || counts["plugin-ready"] < 3 {
		t.Errorf("there are %v", counts)
	}
	if got := harness.Events(h.Host, "-n", "2", "--volume", "data"); !slices.Equal(types(got), want[len(want)-2:]) {
		t.Errorf("the last two are %+v", got)
	}
	if got := harness.Events(h.Host, "--since", "1h"); len(got) < len(all) {
		t.Errorf("%d of %d in the last hour", len(got), len(all))
	}
	files, err := filepath.Glob(filepath.Join(h.Dir, "d/events/*"))
	h.Must(err)
	for _, f := range append(files, filepath.Join(h.Dir, "d/events")) {
		if info, err := os.Stat(f); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", f, info.Mode(), err)
		}
	}
	h.Volctl("volume", "detach", "other", "a")
}

// TestFollowEvents checks that `volctl events -f` prints the last events of a volume and then each
// new event. It must print no events of other volumes.
func TestFollowEvents(t *testing.T) {
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	h.Register("other", "single-node-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	cmd := exec.Command(filepath.Join(harness.BinDir, "volctl"), "events", "-f", "-n", "1", "--volume", "data", "-o", "json")
	cmd.Env = h.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	h.Must(err)
	h.Must(cmd.Start())
	lines := make(chan harness.Event, 100)
	go func() {
		defer close(lines)
		for dec := json.NewDecoder(out); ; {
			var e harness.Event
			if dec.Decode(&e) != nil {
				return
			}
			lines <- e
		}
	}()
	next := func(want string) {
		t.Helper()
		select {
		case e := <-lines:
			if e.Type != want || e.Volume != "data" {
				t.Fatalf("told of %+v instead of %s", e, want)
			}
		case <-time.After(100 * time.Second):
			t.Fatalf("not told of %s", want)
		}
	}
	next("claim-mounted")
	h.Volctl("volume", "claim", "other", "--alloc", "a")
	h.Volctl("volume", "detach", "data", "a")
	for _, typ := range []string{"claim-unpublishing", "unpublished", "unstaged", "claim-node-detached", "detached", "claim-controller-detached", "claim-detached"} {
		next(typ)
	}
	h.Must(cmd.Process.Signal(syscall.SIGINT))
	h.Must(cmd.Wait()) // a command that Ctrl-C ends must exit with 0
	h.Volctl("volume", "detach", "other", "a")
}

// TestRepeatedFailure checks that a failure that repeats itself causes only one event. A step that
// is interrupted by the end of the agent must not count as a failure.
func TestRepeatedFailure(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "15s", nil)
	h.Register("data", "single-node-writer")
	h.AddFaults(csitest.Fault{Method: csitest.NodeStage, Code: codes.Internal, Message: "planned", Times: -1})
	h.Volctl("volume", "claim", "data", "--alloc", "a", "--no-wait")
	h.Await("the fourth try", func() bool { return h.Calls(0).Count(csitest.NodeStage) >= 4 })
	failures := func() (n int) {
		for _, e := range harness.Events(h.Host, "--volume", "data") {
			if e.Type == "step-failed" && e.Step == "NodeStageVolume" {
				n++
			}
		}
		return n
	}
	if n := failures(); n != 1 {
		t.Errorf("four failures are %d events", n)
	}
	warned := func() (n int) { return strings.Count(h.ReadFiles("agent.log"), "[WARN]  volagent.event: step-failed") }
	if n := warned(); n != 1 {
		t.Errorf("four failures are %d warnings", n)
	}
	h.Must(h.Config.Faults().Clear())
	h.AddFaults(csitest.Fault{Method: csitest.NodeStage, Hang: true})
	// This claim makes the agent retry at once.
	h.Volctl("volume", "claim", "data", "--alloc", "a", "--no-wait")
	calls := h.Calls(0).Count(csitest.NodeStage)
	h.Await("the call", func() bool {
		return statusOf(h.Host, "data").Attempt.Running && h.Calls(0).Count(csitest.NodeStage) >= calls
	})
	h.Must(h.Signal(syscall.SIGTERM))
	h.Must(h.Config.Faults().Clear())
	h.Start("rec")
	got := types(harness.Events(h.Host, "--volume", "data"))
	if !slices.Contains(got, "step-interrupted") || strings.Contains(h.ReadFiles("agent.log"), "Canceled: ") {
		t.Errorf("a step that was broken off is told as %q", got)
	}
	h.Volctl("wait", "--volume", "data", "--for", "mounted", "--timeout", "100s")
}

// TestCreateInHand checks the status of a create that is in progress or was interrupted. The status
// must not show a create in progress as stuck. It must show an interrupted create as stuck, with
// the command that completes it. A delete must behave in the same way.
func TestCreateInHand(t *testing.T) {
	h := harness.StartRecorded(t, "60s", nil)
	run := func(args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(harness.BinDir, "volctl"), args...)
		cmd.Env = h.Env
		h.Must(cmd.Start())
		return cmd
	}
	for _, tt := range []struct {
		method, state, doing, fix string
		args                      []string
	}{
		{csitest.CreateVolume, "mounting", "creating", "volctl volume create", []string{"volume", "create", "data", "--plugin", "rec"}},
		{csitest.DeleteVolume, "detaching", "deleting", "volctl volume delete data -y", []string{"volume", "delete", "data", "-y"}},
	} {
		h.AddFaults(csitest.Fault{Method: tt.method, Hang: true})
		before := h.Calls(0).Count(tt.method)
		cmd := run(tt.args...)
		h.Await("the call", func() bool { return h.Calls(0).Count(tt.method) > before })
		if st := statusOf(h.Host, "data"); st.State != tt.state || st.Summary != tt.doing || !st.Attempt.Running || st.Attempt.Step != tt.method {
			t.Errorf("while it runs: %+v", st)
		}
		h.Must(cmd.Process.Kill())
		if err := cmd.Wait(); err == nil {
			t.Error("volctl outlived SIGKILL")
		}
		h.Await("the call to be given up", func() bool { return statusOf(h.Host, "data").State == "stuck" })
		st := statusOf(h.Host, "data")
		if st.Summary != "stuck: "+tt.doing || !strings.HasPrefix(st.Attempt.Fix, tt.fix) || !strings.Contains(st.Attempt.Else, "deregister data --force") || st.Attempt.Code != "Canceled" || !st.Attempt.Unknown {
			t.Errorf("when it was broken off: %+v", st)
		}
		h.Must(h.Config.Faults().Clear())
		h.Volctl(tt.args...)
	}
}

// TestStatusWithHungPlugin checks that every status command responds while the plugin hangs. Before
// the plugin hangs, the status also shows how full a volume is.
func TestStatusWithHungPlugin(t *testing.T) {
	h := harness.StartRecorded(t, "60s", nil)
	h.Register("data", "single-node-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	if out := h.Volctl("volume", "status", "data"); !strings.Contains(out, "● data  mounted, writable, answers in ") || !strings.Contains(out, "%") {
		t.Errorf("healthy, it is\n%s", out)
	}
	pid := h.PluginPID("rec")
	h.Must(syscall.Kill(pid, syscall.SIGSTOP))
	for _, args := range [][]string{{"volume", "status", "data"}, {"node", "status"}, {"volume", "list"}, {"claim", "list"}, {"plugin", "status", "rec"}, {"events"}} {
		begun := time.Now()
		out := h.Volctl(args...)
		// Usually 0.4 s, but slow on a busy machine.
		if took := time.Since(begun); took > 15*time.Second {
			t.Errorf("%v took %v", args, took)
		}
		if args[0] == "volume" && !strings.Contains(out, "mounted") {
			t.Errorf("%v says\n%s", args, out)
		}
	}
	h.Must(syscall.Kill(pid, syscall.SIGCONT))
	h.Volctl("volume", "detach", "data", "a")
}
