package plugins_test

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// tested returns a host with a plugin "rec" for `volctl plugin test`. The host does not check that
// the agent follows CSI, because a plugin test breaks some rules of CSI on purpose.
func tested(t *testing.T, deadline string, tune func(*testing.T, *csitest.Config)) harness.Recorded {
	t.Helper()
	h := harness.Recorded{Host: harness.NewHost(t)}
	h.Config = csitest.Config{
		Base: filepath.Join(h.Dir, "p"), NodeID: "test-host",
		Attach: true, Stage: true, Stats: true, CreateDelete: true, MultiWriter: true,
	}
	if tune != nil {
		tune(t, &h.Config)
	}
	h.WritePlugin(deadline)
	h.Start("rec")
	// End hung calls, so that they do not outlive the agent.
	t.Cleanup(func() { h.Must(h.Config.Faults().Clear()) })
	return h
}

// pluginTest is the JSON output of volctl plugin test.
type pluginTest struct {
	Checks  []api.PluginCheck      `json:"checks"`
	Summary *api.PluginTestSummary `json:"summary"`
}

// testPlugin runs volctl plugin test and returns the decoded output and the result of the command.
func testPlugin(h harness.Recorded, flags ...string) (pluginTest, harness.Result) {
	h.T.Helper()
	r := h.Try(append([]string{"plugin", "test", "rec", "-o", "json"}, flags...)...)
	var out pluginTest
	if r.Out != "" {
		h.Must(json.Unmarshal([]byte(r.Out), &out))
	}
	return out, r
}

// odd returns all results that are neither OK nor skipped. The keys are the names of the checks.
func (p pluginTest) odd() map[string]string {
	odd := map[string]string{}
	for _, c := range p.Checks {
		if c.Result != api.CheckOK && c.Result != api.CheckSkipped {
			odd[c.Check] = c.Result
		}
	}
	return odd
}

func (p pluginTest) check(id string) api.PluginCheck {
	i := slices.IndexFunc(p.Checks, func(c api.PluginCheck) bool { return c.Check == id })
	if i < 0 {
		return api.PluginCheck{}
	}
	return p.Checks[i]
}

// nothingLeft asserts that no mounts, directories or volumes of plugin tests remain.
func nothingLeft(h harness.Recorded) {
	h.T.Helper()
	h.ExpectNoMounts()
	for _, pattern := range []string{"d/csi/rec/staging/*", "d/csi/rec/per-alloc/*", "p/volumes/*"} {
		left, err := filepath.Glob(filepath.Join(h.Dir, pattern))
		h.Must(err)
		if len(left) > 0 {
			h.T.Errorf("left behind: %q", left)
		}
	}
}

const (
	copes  = api.CheckWorksAround
	broken = api.CheckBroken
)

// TestPluginTest checks that a plugin test detects each known misbehaviour of plugins. The verdict
// must fit the effect that the misbehaviour has in the other tests.
func TestPluginTest(t *testing.T) {
	t.Parallel()
	always := func(f csitest.Fault) func(*testing.T, *csitest.Config) {
		return func(t *testing.T, c *csitest.Config) {
			f.Times = -1
			early(t, c, f)
		}
	}
	for _, tt := range []struct {
		name  string
		tune  func(*testing.T, *csitest.Config)
		flags []string
		// odd lists the expected results that are not OK. The result of publish-unstaged is
		// optional for a plugin with staging, because the recording plugin bind-mounts any
		// directory. The results of checks that abandon a call are optional too.
		odd  map[string]string
		said map[string]string // expected words in each check's explanation
	}{
		{name: "a good one", flags: []string{"--kill"}, said: map[string]string{"kill-mounted": "survives"}},
		{name: "capabilities that nobody has heard of", tune: func(_ *testing.T, c *csitest.Config) { c.UnknownCapabilities = true },
			said: map[string]string{"capabilities": "unknown to this agent"}},
		{name: "every id exists", tune: func(_ *testing.T, c *csitest.Config) { c.AnyVolume = true },
			odd: map[string]string{"unknown-publish": copes}},
		{name: "no stage", tune: func(_ *testing.T, c *csitest.Config) { c.Stage = false }},
		{name: "neither attach nor stage nor stats", tune: func(_ *testing.T, c *csitest.Config) { c.Attach, c.Stage, c.Stats = false, false, false }},
		{name: "ids like paths", tune: func(_ *testing.T, c *csitest.Config) { c.IDPrefix = "/pool/a/" }},
		{name: "FUSE in its own process", tune: func(_ *testing.T, c *csitest.Config) { c.Fuse = true }, flags: []string{"--kill"},
			odd: map[string]string{"kill-mounted": copes}, said: map[string]string{"mounted": "fuse", "kill-mounted": "ends with the process"}},
		{name: "its own socket stands in its way", tune: func(_ *testing.T, c *csitest.Config) { c.OldSocket = true }, flags: []string{"--kill"}},

		{name: "stage: dead", tune: always(csitest.Fault{Method: st, Twist: csitest.Dead}), odd: map[string]string{"stage": broken}},
		{name: "publish: dead", tune: always(csitest.Fault{Method: pub, Twist: csitest.Dead}), odd: map[string]string{"mounted": broken}},
		{name: "stage: hung", tune: always(csitest.Fault{Method: st, Twist: csitest.Hung}), odd: map[string]string{"stage": broken}},
		{name: "remade", tune: always(csitest.Fault{Twist: csitest.Remade}), odd: map[string]string{"unstage-again": broken}},
		{name: "direct", tune: always(csitest.Fault{Method: pub, Twist: csitest.Direct})},
		{name: "locked", tune: always(csitest.Fault{Method: pub, Twist: csitest.Locked}), odd: map[string]string{"mounted": broken},
			said: map[string]string{"mounted": "mode 0000"}},
		{name: "kept", tune: always(csitest.Fault{Method: unpub, Twist: csitest.Kept}), odd: map[string]string{"unpublish": copes}},
		{name: "strict", tune: always(csitest.Fault{Method: unpub, Twist: csitest.Strict}),
			odd: map[string]string{"unpublish-again": copes, "unpublish-never": copes, "unknown-unpublish": copes}},
		{name: "severs", tune: always(csitest.Fault{Method: unst, Twist: csitest.Severs}), odd: map[string]string{"unstage-published": copes}},
		{name: "no dots", tune: always(csitest.Fault{Twist: csitest.NoDots}), odd: map[string]string{"hidden-path": copes}},
		{name: "argv", tune: always(csitest.Fault{Twist: csitest.Argv}), odd: map[string]string{"argv-path": copes}},
		{name: "sharing", tune: always(csitest.Fault{Twist: csitest.Sharing}), odd: map[string]string{"stage": broken},
			said: map[string]string{"stage": "is not in a shared mount"}},
		// This file system answers only for its root directory.
		{name: "served", tune: always(csitest.Fault{Method: st, Twist: csitest.Served}),
			odd: map[string]string{"write": broken, "stats": copes}, said: map[string]string{"mounted": "fuse"}},

		{name: "read-only is ignored", tune: always(csitest.Fault{Method: pub, IgnoreReadOnly: true}), odd: map[string]string{"read-only": copes}},
		{name: "the mount comes after the answer", tune: always(csitest.Fault{Method: pub, Effect: csitest.EffectLater, Delay: 300 * time.Millisecond}),
			odd: map[string]string{"publish": copes, "mounted": copes, "unknown-publish": copes, "late-mount": copes}},
		{name: "publish answers OK and does nothing", tune: always(csitest.Fault{Method: pub, Effect: csitest.EffectNone}), odd: map[string]string{"publish": copes, "mounted": broken}},
		{name: "stage answers OK and does nothing", tune: always(csitest.Fault{Method: st, Effect: csitest.EffectNone}), odd: map[string]string{"source": broken}},
		{name: "a stage takes its time", tune: always(csitest.Fault{Method: st, Delay: 300 * time.Millisecond}), said: map[string]string{"given-up-stage": "a mount appeared"}},
		{name: "unpublish says Internal and did it", tune: always(csitest.Fault{Method: unpub, Effect: csitest.EffectDone, Code: codes.Internal}),
			odd: map[string]string{"unpublish": copes, "unpublish-again": copes, "unpublish-never": copes, "unknown-unpublish": copes, "given-up-publish": copes}},
		{name: "unstage says Internal and did it", tune: always(csitest.Fault{Method: unst, Effect: csitest.EffectDone, Code: codes.Internal}),
			odd: map[string]string{"unstage": broken, "unstage-again": broken, "given-up-stage": copes}},
		{name: "publish crashes it", tune: func(t *testing.T, c *csitest.Config) {
			early(t, c, csitest.Fault{Method: pub, Crash: csitest.AfterEffect})
		}, odd: map[string]string{"publish": broken}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := tested(t, "10s", tt.tune)
			got, r := testPlugin(h, tt.flags...)
			// On a busy machine the test may abandon a call before the call is sent. Repeat the
			// test then.
			for again := 0; again < 5 && tt.said["given-up-stage"] != "" && strings.HasPrefix(got.check("given-up-stage").Said, "the call was given up after"); again++ {
				got, r = testPlugin(h, tt.flags...)
			}
			want := maps.Clone(tt.odd)
			if want == nil {
				want = map[string]string{}
			}
			// On a busy machine an undo call may overtake the call that the test abandoned. This
			// can happen with every plugin that does not queue its calls.
			for _, may := range []string{"publish-unstaged", "given-up-stage", "given-up-publish"} {
				if got.check(may).Result == copes {
					want[may] = copes
				}
			}
			if !maps.Equal(got.odd(), want) {
				for _, c := range got.Checks {
					if c.Result != api.CheckOK {
						t.Logf("%-18s %-12s %s", c.Check, c.Result, c.Said)
					}
				}
				t.Errorf("found %v, want %v\n%s", got.odd(), want, r.Err)
			}
			for id, part := range tt.said {
				if c := got.check(id); !strings.Contains(c.Said, part) {
					t.Errorf("%s says %q, want %q in it", id, c.Said, part)
				}
			}
			if isBroken := slices.Contains(slices.Collect(maps.Values(want)), broken); (r.Code == 1) != isBroken || (r.Code == 0) == isBroken {
				t.Errorf("exit %d: %s", r.Code, r.Err)
			}
			nothingLeft(h)
		})
	}
}

// TestPluginTestLocal checks that the bundled driver passes all checks of a plugin test, with
// directories and with images. With --kill, the test may kill the driver's process.
func TestPluginTestLocal(t *testing.T) {
	t.Parallel()
	h := harness.Recorded{Host: harness.NewHost(t)}
	h.Start("local")
	for _, flags := range [][]string{{"--kill"}, {"--size", "64MiB", "--param", "type=image"}} {
		r := h.Try(append([]string{"plugin", "test", "local", "-o", "json"}, flags...)...)
		var got pluginTest
		h.Must(json.Unmarshal([]byte(r.Out), &got))
		if r.Code != 0 || len(got.odd()) > 0 || got.Summary == nil || got.Summary.OK < 35 || got.Summary.Mounts != "kernel" {
			t.Errorf("%q: exit %d, %v, %+v, %s", flags, r.Code, got.odd(), got.Summary, r.Err)
		}
	}
	h.ExpectNoMounts()
	if left, err := filepath.Glob(filepath.Join(h.Dir, "d/plugins/local/state/volumes/*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// TestPluginTestBeside checks that a plugin test does not disturb a volume in use. The agent
// refuses the option --kill while the plugin has a volume in use.
func TestPluginTestBeside(t *testing.T) {
	t.Parallel()
	h := tested(t, "10s", func(_ *testing.T, c *csitest.Config) { c.AnyVolume = true })
	h.Register("data", "single-node-writer")
	log := h.StartWriter(h.Volctl("volume", "claim", "data", "--alloc", "a"))
	mounts, claims, was := h.Mounts(), h.Volctl("claim", "list", "-o", "json"), harness.FileSize(log)
	if r := h.Try("plugin", "test", "rec", "--kill"); r.Code != 4 || !strings.Contains(r.Err, `volume "data" uses it`) {
		t.Errorf("exit %d: %s", r.Code, r.Err)
	}
	if got, r := testPlugin(h); r.Code != 0 {
		t.Errorf("exit %d: %v %s", r.Code, got.odd(), r.Err)
	}
	if got := h.Mounts(); got != mounts {
		t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
	}
	if got := h.Volctl("claim", "list", "-o", "json"); got != claims {
		t.Errorf("the claims changed:\n%s\nwere:\n%s", got, claims)
	}
	now := harness.FileSize(log)
	if now <= was {
		t.Errorf("the writer did not go on: %d bytes, were %d", now, was)
	}
	all, err := csitest.ReadJournal(h.Config.JournalPath())
	h.Must(err)
	if calls := all.Of("ext/data").Mutating().Methods(); !slices.Equal(calls, []string{cp, st, pub}) {
		t.Errorf("the calls for the volume in use are %q", calls)
	}
	if r := h.Try("plugin", "test", "rec", "--external-id", "ext/data"); r.Code != 4 || !strings.Contains(r.Err, `the registered volume "data"`) {
		t.Errorf("exit %d: %s", r.Code, r.Err)
	}
}

// TestPluginTestOwnVolume runs a plugin test on a volume that the user supplies. The test writes to
// the volume and then restores its content.
func TestPluginTestOwnVolume(t *testing.T) {
	t.Parallel()
	h := tested(t, "10s", func(_ *testing.T, c *csitest.Config) {
		c.AnyVolume, c.WantSecrets, c.VolumeContext = true, map[string]string{"key": "s3cret"}, map[string]string{"pool": "a"}
	})
	h.Must(os.WriteFile(filepath.Join(h.Dir, "key"), []byte("s3cret\n"), 0o600))
	// Register a volume and write a file to it, as its user would do.
	h.RegisterWith("external_id: ext/data\ncontext: {pool: a}\nsecrets: {key: {file: " + h.Dir + "/key}}\n")
	path := h.Volctl("volume", "claim", "data", "--alloc", "a")
	h.Must(os.WriteFile(filepath.Join(path, "mine"), []byte("kept"), 0o644))
	h.Volctl("volume", "detach", "data")
	h.Volctl("volume", "deregister", "data")

	got, r := testPlugin(h, "--external-id", "ext/data", "--context", "pool=a", "--secret", "key=file:"+h.Dir+"/key")
	if r.Code != 0 || got.check("write").Result != api.CheckOK || got.check("create").Result != api.CheckSkipped || got.check("leftovers").Result != api.CheckOK {
		t.Errorf("exit %d: %v %s", r.Code, got.odd(), r.Err)
	}
	files, err := filepath.Glob(filepath.Join(h.Dir, "p/volumes/*/data/*"))
	h.Must(err)
	hidden, err := filepath.Glob(filepath.Join(h.Dir, "p/volumes/*/data/.*"))
	h.Must(err)
	if all := append(files, hidden...); len(all) != 1 || filepath.Base(all[0]) != "mine" {
		t.Errorf("the volume holds %q", all)
	}
	h.ExpectNoMounts()
	j, err := csitest.LoadJournal(h.Config.JournalPath())
	h.Must(err)
	for _, v := range j.Violations {
		if v.Rule == csitest.RuleSecrets || v.Rule == csitest.RuleVolumeContext {
			t.Errorf("a rule of CSI was broken: %s", v)
		}
	}
	raw, err := os.ReadFile(h.Log.Name())
	h.Must(err)
	if strings.Contains(string(raw)+r.Out+r.Err+h.Volctl("events"), "s3cret") {
		t.Error("the secret is told")
	}
}

// TestPluginTestCutShort kills the agent at different moments of a plugin test. The next agent must
// undo all effects of the test.
func TestPluginTestCutShort(t *testing.T) {
	t.Parallel()
	for _, method := range []string{csitest.CreateVolume, cp, st, pub, unpub, unst, uncp, csitest.DeleteVolume} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			h := tested(t, "10s", nil)
			h.AddFaults(csitest.Fault{Method: method, KillCaller: csitest.AfterEffect})
			if _, r := testPlugin(h); r.Code != 7 {
				t.Fatalf("exit %d: %s", r.Code, r.Err)
			}
			if err := h.Cmd.Wait(); err == nil {
				t.Fatal("the agent was not killed")
			}
			h.Start("rec")
			h.Await("what the test made to be undone", func() bool {
				return strings.Contains(h.Volctl("events"), "plugin-test-cleaned")
			})
			nothingLeft(h)
			h.Volctl("plugin", "stop", "rec") // stop succeeds only if the plugin is not in use
			h.Volctl("plugin", "start", "rec")
		})
	}
}

// TestPluginTestStopped stops the agent during a plugin test. The agent must end in time, and
// either this agent or the next one must undo the effects of the test.
func TestPluginTestStopped(t *testing.T) {
	t.Parallel()
	h := tested(t, "30s", nil)
	h.AddFaults(csitest.Fault{ID: "wait", Method: csitest.NodeStats, Hang: true, Times: -1})
	cmd := exec.Command(filepath.Join(harness.BinDir, "volctl"), "plugin", "test", "rec")
	cmd.Env = h.Env
	h.Must(cmd.Start())
	h.Await("the volume to be mounted", func() bool { return strings.Contains(h.Mounts(), "/per-alloc/") })
	began := time.Now()
	h.Must(h.Signal(syscall.SIGTERM))
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %s to stop", took)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("volctl ended with %v", err)
	}
	h.Must(h.Config.Faults().Remove("wait"))
	h.Start("rec")
	h.Await("the test to be undone", func() bool { return h.Try("plugin", "stop", "rec").Code == 0 })
	nothingLeft(h)
}

// TestPluginTestInterrupted ends a plugin test with Ctrl-C. The agent must undo the effects of the
// test. While a test runs, the agent refuses a second test, and the plugin counts as in use.
func TestPluginTestInterrupted(t *testing.T) {
	t.Parallel()
	h := tested(t, "30s", nil)
	h.AddFaults(csitest.Fault{ID: "wait", Method: csitest.NodeStats, Hang: true, Times: -1})
	cmd := exec.Command(filepath.Join(harness.BinDir, "volctl"), "plugin", "test", "rec")
	cmd.Env = h.Env
	h.Must(cmd.Start())
	h.Await("the volume to be mounted", func() bool { return strings.Contains(h.Mounts(), "/per-alloc/") })
	if r := h.Try("plugin", "test", "rec"); r.Code != 4 || !strings.Contains(r.Err, "is already running") {
		t.Errorf("a second test: exit %d: %s", r.Code, r.Err)
	}
	if r := h.Try("plugin", "stop", "rec"); r.Code != 4 || !strings.Contains(r.Err, "volagent-test-") {
		t.Errorf("a stop: exit %d: %s", r.Code, r.Err)
	}
	h.Must(cmd.Process.Signal(syscall.SIGINT))
	err := cmd.Wait()
	if cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("volctl ended with %v", err)
	}
	h.Await("the volume to be undone", func() bool { return h.Mounts() == "" })
	h.Must(h.Config.Faults().Remove("wait"))
	h.Await("the test to be over", func() bool { return strings.Contains(h.Volctl("events"), "plugin-tested") })
	nothingLeft(h)
	h.Volctl("plugin", "stop", "rec")
}

// TestPluginTestRegisteredMeanwhile registers a volume while a plugin test uses the same storage.
// The agent must allow the registration only after the test has undone its effects.
func TestPluginTestRegisteredMeanwhile(t *testing.T) {
	t.Parallel()
	h := tested(t, "30s", func(_ *testing.T, c *csitest.Config) { c.AnyVolume = true })
	h.AddFaults(csitest.Fault{ID: "wait", Method: csitest.NodeStats, Hang: true, Times: -1})
	cmd := exec.Command(filepath.Join(harness.BinDir, "volctl"), "plugin", "test", "rec", "--external-id", "ext/data")
	cmd.Env = h.Env
	h.Must(cmd.Start())
	h.Await("the volume to be mounted", func() bool { return strings.Contains(h.Mounts(), "/per-alloc/") })
	file := filepath.Join(h.Dir, "data.yaml")
	h.Must(os.WriteFile(file, []byte("id: data\nplugin_id: rec\nexternal_id: ext/data\n"), 0o644))
	h.ExpectExit(4, `is in a test of plugin "rec"`, "volume", "register", file)
	h.Must(cmd.Process.Signal(syscall.SIGINT))
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("volctl ended with %v", err)
	}
	h.Must(h.Config.Faults().Remove("wait"))
	h.Await("the test to be over", func() bool { return strings.Contains(h.Volctl("events"), "plugin-tested") })
	h.ExpectNoMounts()
	h.ExpectExit(0, "registered", "volume", "register", file)
}

// TestPluginTestOutOfTime checks a plugin test whose time limit interrupts a call. The interrupted
// call must not count as a failure of the plugin.
func TestPluginTestOutOfTime(t *testing.T) {
	t.Parallel()
	h := tested(t, "30s", nil)
	h.AddFaults(csitest.Fault{ID: "wait", Method: pub, Hang: true, Times: -1})
	got, r := testPlugin(h, "--timeout", "2s")
	if c := got.check("publish"); r.Code != 5 || len(got.odd()) > 0 || c.Result != api.CheckSkipped || !strings.Contains(c.Said, "time") {
		t.Errorf("exit %d: %v, publish %+v: %s", r.Code, got.odd(), c, r.Err)
	}
	nothingLeft(h)
}

// TestPluginTestRefused checks that the agent at once refuses tests that it cannot run.
func TestPluginTestRefused(t *testing.T) {
	t.Parallel()
	h := tested(t, "10s", func(_ *testing.T, c *csitest.Config) { c.CreateDelete = false })
	for _, tt := range []struct {
		args []string
		code int
		said string
	}{
		{[]string{"rec"}, 4, "--external-id"},
		{[]string{"nosuch"}, 3, "no plugin"},
		{[]string{"rec", "--context", "a=b"}, 2, "--external-id"},
		{[]string{"rec", "--secret", "a=hush"}, 2, "a secret itself is refused"},
		{[]string{"rec", "--access-mode", "none"}, 2, "unknown access mode"},
		{[]string{"local", "--param", "type=none"}, 2, "--param"},
		{[]string{"local", "--timeout", "300ms"}, 5, "did not end within"},
	} {
		r := h.Try(append([]string{"plugin", "test"}, tt.args...)...)
		if r.Code != tt.code || !strings.Contains(r.Err, tt.said) || strings.Contains(r.Err, "hush") {
			t.Errorf("%q: exit %d: %s", tt.args, r.Code, r.Err)
		}
	}
	h.ExpectNoMounts()
}

// TestPluginTestParts tests a plugin with several parts. Each call must reach the right part, and
// the option --kill must kill the node part.
func TestPluginTestParts(t *testing.T) {
	t.Parallel()
	h := newInParts(t)
	clear(h.cfgs) // ignore violations of CSI, which a plugin test causes on purpose
	pids := h.pids()
	got, r := testPlugin(h.Recorded, "--kill")
	for check, result := range got.odd() {
		if result == broken {
			t.Errorf("%s: %s", check, got.check(check).Said)
		}
	}
	if r.Code != 0 || got.check("kill-mounted").Result != api.CheckOK || got.check("attach").Result != api.CheckOK || got.check("leftovers").Result != api.CheckOK {
		t.Errorf("exit %d: %s%s", r.Code, r.Out, r.Err)
	}
	if now := h.pids(); now["node"] == pids["node"] || now["a"] != pids["a"] || now["b"] != pids["b"] {
		t.Errorf("processes %v, were %v", now, pids)
	}
	h.ExpectNoMounts()
}
