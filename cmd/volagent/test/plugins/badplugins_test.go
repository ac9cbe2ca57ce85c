package plugins_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// badPlugin describes a plugin that the agent cannot use, and the status that the agent must show.
type badPlugin struct {
	file   string // name of the plugin file without ".yaml", and the plugin id by default
	text   string // content of the plugin file, with {dir} for the host's directory
	shown  string // the plugin's id in the list if it is not the file name
	states []string
	says   string // the expected status, with {dir} for the host's directory
}

// badPlugins lists mistakes in plugin files, and in the programs and sockets that the files name.
// The agent retries a plugin that fails, so the plugin's state is either "starting" or "backing
// off".
var badPlugins = []badPlugin{
	{"missing", "exec: {command: [/no/such/plugin]}", "", again, `cannot run "/no/such/plugin": no such file or directory`},
	{"nowhere", "exec: {command: [no-such-plugin]}", "", again, `cannot run "no-such-plugin": executable file not found in $PATH`},
	{"plain", "exec: {command: ['{dir}/volagent.yaml']}", "", again, `cannot run "{dir}/volagent.yaml": permission denied`},
	{"exits", "exec: {command: ['false']}", "", again, "process exited with status 1 before it was ready"},
	{"mute", "exec: {command: [sleep, '1000']}\nhealth: {start_timeout: 1s}", "", again, "not ready after 1s: it has not opened its socket {dir}/run/plugins/mute/csi.sock"},
	{"sullen", "exec: {command: [{self}], env: {CSITEST_CONFIG: '{silent}'}}\nhealth: {start_timeout: 1s}", "", again, "not ready after 1s: it has opened its socket {dir}/run/plugins/sullen/csi.sock, and does not answer"},
	{"silent", "exec: {command: [{self}], env: {CSITEST_CONFIG: '{silent}'}}\nhealth: {start_timeout: 2s, timeout: 1s}", "", again, "not ready after 2s: Probe: "},
	{"twice-a", "id: twice\nsocket: {dir}/a.sock", "twice", []string{api.PluginUnhealthy}, "socket {dir}/a.sock does not exist"},
	{"twice-b", "id: twice\nsocket: {dir}/b.sock", "twice-b.yaml", failed, `twice-b.yaml: plugin "twice" with the same type and instance is defined in {dir}/plugins.d/twice-a.yaml already`},
	{"used", "socket: {dir}/a.sock", "", failed, "used.yaml: socket {dir}/a.sock is another plugin's already, in {dir}/plugins.d/twice-a.yaml"},
	{"key", "exce: {command: [sleep, '1000']}", "", failed, `key.yaml:2: unknown key "exce" in a plugin file`},
	{"both", "socket: {dir}/c.sock\nbuiltin: local", "", failed, "builtin and socket are given at once"},
	{"garbage", "\x00", "garbage.yaml", failed, "garbage.yaml: "},
}

var (
	again  = []string{api.PluginBackingOff, api.PluginStarting}
	failed = []string{api.PluginFailed}
)

// TestBadPlugins checks that the status of each unusable plugin shows the reason, and that the
// agent and all other plugins continue to work.
func TestBadPlugins(t *testing.T) {
	t.Parallel()
	h := harness.NewRecorded(t, "10s", nil)
	silent := csitest.Config{Base: filepath.Join(h.Dir, "s")}
	h.Must(os.Mkdir(silent.Base, 0o755))
	_, err := silent.Faults().Add(csitest.Fault{Method: csitest.Probe, Hang: true, Times: -1})
	h.Must(err)
	env, err := silent.Environment()
	h.Must(err)
	self, err := os.Executable()
	h.Must(err)
	_, config, _ := strings.Cut(env[0], "=")
	fill := strings.NewReplacer("{dir}", h.Dir, "{self}", self, "{silent}", config).Replace
	for _, bad := range badPlugins {
		text := fill(bad.text)
		if !strings.HasPrefix(text, "id: ") && bad.file != "garbage" {
			text = "id: " + bad.file + "\n" + text
		}
		h.Must(os.WriteFile(filepath.Join(h.Dir, "plugins.d", bad.file+".yaml"), []byte(text+"\n"), 0o644))
	}
	h.Start("rec", "local")
	client := apiclient.New(h.Socket())
	for _, bad := range badPlugins {
		id := bad.shown
		if id == "" {
			id = bad.file
		}
		var last string
		seen := func() bool {
			p, err := client.Plugin(t.Context(), id)
			h.Must(err)
			last = fmt.Sprintf("%s: %s", p.State, p.Reason)
			for _, state := range bad.states {
				if p.State == state && strings.Contains(p.Reason, fill(bad.says)) {
					return true
				}
			}
			return false
		}
		for end := time.Now().Add(100 * time.Second); !seen(); <-time.After(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("plugin %q is %s; want %v with %q", id, last, bad.states, fill(bad.says))
			}
		}
		h.ExpectExit(0, fill(bad.says), "plugin", "status", id)
	}
	h.Register("data", "single-node-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	h.Volctl("volume", "create", "own", "--plugin", "local")
	h.Volctl("volume", "claim", "own", "--alloc", "a")
	h.Volctl("volume", "detach", "data", "a")
	h.Volctl("volume", "detach", "own", "a")
	for _, id := range []string{"rec", "local"} {
		if p, err := client.Plugin(t.Context(), id); err != nil || p.Restarts != 0 || p.State != api.PluginReady {
			t.Errorf("plugin %q: %+v, %v", id, p, err)
		}
	}
}
