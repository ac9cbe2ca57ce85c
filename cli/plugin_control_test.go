package cli

import (
	"net/http"
	"testing"

	"github.com/volagent/volagent/agent/api"
)

// controlled returns a fake agent that accepts requests to restart, stop and start plugins.
func controlled() *fake {
	f := world()
	f.on["POST /v1/plugins/ebs/restart"] = func(r *http.Request) (any, error) {
		if r.URL.Query().Get("force") != "true" {
			return nil, &api.Error{Code: api.CodeRefused, Message: `plugin "ebs" is in use, by "backup_1", "data"`, Hint: "volctl plugin restart ebs -y"}
		}
		return api.Plugin{ID: "ebs", State: api.PluginReady}, nil
	}
	f.on["POST /v1/plugins/ebs/stop"] = f.on["POST /v1/plugins/ebs/restart"]
	f.on["POST /v1/plugins/ebs/start"] = answers(api.Plugin{ID: "ebs", State: api.PluginReady})
	f.on["POST /v1/plugins/nfs/restart"] = answers(api.Plugin{ID: "nfs", State: api.PluginStopped})
	f.on["POST /v1/plugins/nfs/stop"] = answers(api.Plugin{ID: "nfs", State: api.PluginStopped})
	f.on["POST /v1/plugins/nf/start"] = refuses(api.Error{Code: api.CodeNotFound, Message: `no plugin "nf"`})
	return f
}

func TestPluginRestart(t *testing.T) {
	f := controlled()
	r := with(t, f)
	expect(t, r.volctl("plugin", "restart", "ebs"), 4, "", "volctl: cannot restart plugin \"ebs\": plugin \"ebs\" is in use, by \"backup_1\", \"data\"\nhint: volctl plugin restart ebs -y\n")
	expectSent(t, f, "POST /v1/plugins/ebs/restart?wait=1m20s")
	const breaks = "volctl: 2 volumes in use through plugin \"ebs\": 3 claims have FUSE mounts, which break if the plugin's process serves them\n"
	expect(t, r.volctl("plugin", "restart", "ebs", "-y", "--timeout", "5s"), 0, "restarted plugin \"ebs\"\n", breaks)
	expectSent(t, f, "GET /v1/plugins/ebs", "POST /v1/plugins/ebs/restart?force=true&wait=5s")
	expect(t, r.volctl("plugin", "restart", "ebs", "-y", "--no-wait", "-q"), 0, "ebs\n", breaks)
	expectSent(t, f, "GET /v1/plugins/ebs", "POST /v1/plugins/ebs/restart?force=true")
	expect(t, r.volctl("plugin", "restart", "nfs", "--no-wait"), 0, "restarting plugin \"nfs\"\n", "")
	expect(t, r.volctl("plugin", "restart", "nfs", "--timeout", "0s"), 2, "", "--timeout must be more than 0")
	expect(t, r.volctl("plugin", "restart"), 2, "", "plugin restart needs ID")
	f.sent()

	const question = `2 volumes in use through plugin "ebs": 3 claims have FUSE mounts, which break if the plugin's process serves them. Restart it? [y/N] `
	r.terminal, r.stdin = true, "n\n"
	expect(t, r.volctl("plugin", "restart", "ebs"), 1, "", question+"volctl: cannot restart plugin \"ebs\": it was not confirmed; nothing was changed\n")
	expectSent(t, f, "GET /v1/plugins/ebs")
	r.stdin = "y\n"
	expect(t, r.volctl("plugin", "restart", "ebs"), 0, "restarted plugin \"ebs\"\n", question)
	expectSent(t, f, "GET /v1/plugins/ebs", "POST /v1/plugins/ebs/restart?force=true&wait=1m20s")
	r.stdin = "" // the command asks no question, because no volume is in use
	expect(t, r.volctl("plugin", "restart", "nfs"), 0, "restarted plugin \"nfs\"\n", "")
	expectSent(t, f, "GET /v1/plugins/nfs", "POST /v1/plugins/nfs/restart?wait=1m20s")
	// A command that changes state accepts only a complete id.
	expect(t, r.volctl("plugin", "restart", "eb"), 3, "", `near: "ebs"`)
}

// TestPluginParts checks that a request for certain parts contains their names. For a controller,
// the command must print no warning about FUSE mounts, because a controller provides none.
func TestPluginParts(t *testing.T) {
	f := controlled()
	r := with(t, f)
	expect(t, r.volctl("plugin", "restart", "nfs", "--type", "controller", "--instance", "a"), 0, "restarted controller \"a\" of plugin \"nfs\"\n", "")
	expectSent(t, f, "POST /v1/plugins/nfs/restart?instance=a&type=controller&wait=1m20s")
	expect(t, r.volctl("plugin", "restart", "nfs", "-type", "driver"), 2, "", `--type "driver" is neither node nor controller`)
	expect(t, r.volctl("plugin", "logs", "nfs", "--type", "driver"), 2, "", `--type "driver" is neither node nor controller`)
	expect(t, r.volctl("plugin", "start", "ebs", "--type", "node", "--no-wait"), 0, "starting node of plugin \"ebs\"\n", "")
	expectSent(t, f, "POST /v1/plugins/ebs/start?type=node")
	expect(t, r.volctl("plugin", "stop", "ebs", "--type", "controller", "--force"), 0, "stopped controller of plugin \"ebs\"\n",
		"volctl: 2 volumes in use through plugin \"ebs\": unless another controller is ready, nothing is attached or detached until: volctl plugin start ebs\n")
	expectSent(t, f, "GET /v1/plugins/ebs", "POST /v1/plugins/ebs/stop?force=true&type=controller&wait=1m20s")
	r.terminal = true // the command asks no question, even on a terminal
	expect(t, r.volctl("plugin", "restart", "ebs", "--type", "controller"), 4, "", "volctl: cannot restart controller of plugin \"ebs\": plugin \"ebs\" is in use")
	f.sent()
	expect(t, r.volctl("plugin", "logs", "nfs", "--instance", "b"), 0, "starting\npanic\n", "")
	expectSent(t, f, "GET /v1/plugins/nfs", "GET /v1/plugins/nfs/logs?instance=b")
}

func TestPluginStopAndStart(t *testing.T) {
	f := controlled()
	r := with(t, f)
	expect(t, r.volctl("plugin", "stop", "ebs"), 4, "", "volctl: cannot stop plugin \"ebs\": plugin \"ebs\" is in use")
	expectSent(t, f, "POST /v1/plugins/ebs/stop?wait=1m20s")
	expect(t, r.volctl("plugin", "stop", "ebs", "--force"), 0, "stopped plugin \"ebs\"\n",
		"volctl: 2 volumes in use through plugin \"ebs\": 3 claims have FUSE mounts, which break if the plugin's process serves them, and nothing is mounted or unmounted through it until: volctl plugin start ebs\n")
	expectSent(t, f, "GET /v1/plugins/ebs", "POST /v1/plugins/ebs/stop?force=true&wait=1m20s")
	expect(t, r.volctl("plugin", "stop", "nfs", "--force"), 0, "stopped plugin \"nfs\"\n", "")
	f.sent()
	expect(t, r.volctl("plugin", "stop", "nfs", "--no-wait"), 0, "stopping plugin \"nfs\"\n", "")
	expectSent(t, f, "POST /v1/plugins/nfs/stop")
	expect(t, r.volctl("plugin", "start", "ebs", "-timeout", "3s"), 0, "started plugin \"ebs\"\n", "")
	expectSent(t, f, "POST /v1/plugins/ebs/start?wait=3s")
	expect(t, r.volctl("plugin", "start", "ebs", "-no-wait"), 0, "starting plugin \"ebs\"\n", "")
	expectSent(t, f, "POST /v1/plugins/ebs/start")
	expect(t, r.volctl("plugin", "start", "nf"), 3, "", `near: "nfs"; all: volctl plugin list`)
	expect(t, r.volctl("plugin", "stop", "none", "--force"), 3, "", `no such plugin`)
}
