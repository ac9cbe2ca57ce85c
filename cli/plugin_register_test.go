package cli

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/volagent/volagent/agent/api"
)

// registering returns a fake agent that answers each registration with result.
func registering(result api.PluginResult) *fake {
	f := world()
	f.on["POST /v1/plugins"] = answers(result)
	return f
}

func TestPluginRegister(t *testing.T) {
	ebs := api.Plugin{ID: "ebs", State: api.PluginReady}
	f := registering(api.PluginResult{Outcome: "registered", Plugin: ebs})
	r := with(t, f)
	file := filepath.Join(t.TempDir(), "ebs.yaml")
	if err := os.WriteFile(file, []byte("id: ebs"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, r.volctl("plugin", "register", file, "--timeout", "5s"), 0, "registered plugin \"ebs\"\n", "")
	f.sent()
	r.stdin = "id: ebs"
	expect(t, r.volctl("plugin", "register", "-", "-no-wait", "-q"), 0, "ebs\n", "")
	expectSent(t, f, "POST /v1/plugins?name=stdin id: ebs")
	expect(t, r.volctl("plugin", "register", "-"), 0, "registered plugin \"ebs\"\n", "")
	expectSent(t, f, "POST /v1/plugins?name=stdin&wait=1m20s id: ebs")
	expect(t, r.volctl("plugin", "register", "-", "-o", "go-template={{.outcome}} {{.plugin.id}}"), 0, "registered ebs\n", "")
	expect(t, r.volctl("plugin", "register", filepath.Join(t.TempDir(), "none")), 2, "", "no such file")
	expect(t, r.volctl("plugin", "register"), 2, "", "plugin register needs FILE")
	expect(t, r.volctl("plugin", "register", "-", "--timeout", "0s"), 2, "", "--timeout must be more than 0")

	for _, tt := range []struct {
		result api.PluginResult
		says   string
	}{
		{api.PluginResult{Outcome: "unchanged", Plugin: ebs}, "plugin \"ebs\" is unchanged\n"},
		{api.PluginResult{Outcome: "updated", Plugin: api.Plugin{ID: "ebs", Pending: "its registration changed"}}, "updated plugin \"ebs\"; pending: its registration changed\n"},
		{api.PluginResult{Outcome: "registered", Plugin: api.Plugin{ID: "ebs", State: api.PluginStopped, Reason: "on request"}}, "registered plugin \"ebs\"; it is stopped on request\n"},
	} {
		expect(t, with(t, registering(tt.result)).volctl("plugin", "register", file), 0, tt.says, "")
	}

	f.on["POST /v1/plugins"] = refuses(api.Error{
		Code: api.CodePluginUnavailable, Message: `plugin "ebs" is backing-off: process exited with status 1; it stays registered`,
		Hint: "volctl plugin status ebs", Details: map[string]string{"plugin_log": "no region"},
	})
	expect(t, r.volctl("plugin", "register", file), 6, "",
		"volctl: cannot register the plugin: plugin \"ebs\" is backing-off: process exited with status 1; it stays registered\nplugin log: no region\nhint: volctl plugin status ebs\n")
}

func TestPluginDeregister(t *testing.T) {
	f := world()
	f.on["DELETE /v1/plugins/ebs"] = func(r *http.Request) (any, error) {
		if r.URL.Query().Get("force") != "true" {
			return nil, &api.Error{Code: api.CodeRefused, Message: `plugin "ebs" is in use, by "backup_1", "data"`, Hint: "volctl plugin deregister ebs --force"}
		}
		return api.Done{}, nil
	}
	f.on["DELETE /v1/plugins/nfs"] = answers(api.Done{})
	f.on["DELETE /v1/plugins/nf"] = refuses(api.Error{Code: api.CodeNotFound, Message: `no plugin "nf"`})
	r := with(t, f)
	expect(t, r.volctl("plugin", "deregister", "ebs"), 4, "", "volctl: cannot deregister plugin \"ebs\": plugin \"ebs\" is in use, by \"backup_1\", \"data\"\nhint: volctl plugin deregister ebs --force\n")
	expectSent(t, f, "DELETE /v1/plugins/ebs?wait=1m20s")
	expect(t, r.volctl("plugin", "deregister", "ebs", "-force"), 0, "deregistered plugin \"ebs\"\n",
		"volctl: 2 volumes in use through plugin \"ebs\": 3 claims have FUSE mounts, which break if the plugin's process serves them, and nothing is mounted or unmounted through it until it is registered again\n")
	expectSent(t, f, "GET /v1/plugins/ebs", "DELETE /v1/plugins/ebs?force=true&wait=1m20s")
	expect(t, r.volctl("plugin", "deregister", "nfs", "--no-wait"), 0, "deregistered plugin \"nfs\"; it is being stopped\n", "")
	expectSent(t, f, "DELETE /v1/plugins/nfs")
	expect(t, r.volctl("plugin", "deregister", "nfs", "-q"), 0, "nfs\n", "")
	expect(t, r.volctl("plugin", "deregister", "nf"), 3, "", `near: "nfs"; all: volctl plugin list`)
	expect(t, r.volctl("plugin", "deregister", "nf", "--ignore-not-found"), 0, "nothing to do\n", "")
	expect(t, r.volctl("plugin", "deregister", "a/b"), 2, "", "bad plugin id")
}
