package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
)

// withFile returns a fake agent that knows one plugin, which a file defines.
func withFile(t *testing.T, text string) (*fake, *run, string) {
	t.Helper()
	f := &fake{}
	path := filepath.Join(t.TempDir(), "scaleway.yaml")
	writeTestFile(t, path, text)
	f.plugins = []api.Plugin{{ID: "scaleway", State: api.PluginDisabled, Parts: []api.PluginPart{{State: api.PluginDisabled, File: path}}}}
	return f, with(t, f), path
}

// complete is a plugin file without missing values. SECRET stands for the file of its secret.
const complete = `# scaleway
id: scaleway
enabled: false   # until then
container:
  runtime: podman
  image: docker.io/scaleway/scaleway-csi:v0.3.6
  args: ["--endpoint=${CSI_ENDPOINT}"]
  env:
    SCW_DEFAULT_PROJECT_ID: p1
    SCW_DEFAULT_ZONE: fr-par-1
    SCW_ACCESS_KEY: {file: SECRET}
  mounts: [/:/host, /etc/x:/etc/x:ro]
`

// TestPluginEnable checks that the command shows the rights, asks, and changes only the key enabled.
func TestPluginEnable(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "key")
	writeTestFile(t, secret, "hunter2\n")
	text := strings.Replace(complete, "SECRET", secret, 1)
	_, r, path := withFile(t, text)
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}

	expect(t, r.volctl("plugin", "enable", "scaleway"), 4, "", "cannot enable plugin \"scaleway\": it needs a confirmation, and there is no terminal\nhint: volctl plugin enable scaleway -y\n")
	r.terminal = true
	r.stdin = "n\n"
	expect(t, r.volctl("plugin", "enable", "scaleway"), 1, "", "Enable plugin \"scaleway\"? [y/N] volctl: cannot enable plugin \"scaleway\": it was not confirmed; nothing was changed\n")
	if readFile(t, path) != text {
		t.Error("the file was changed without a confirmation")
	}

	r.stdin = "y\n"
	res := r.volctl("plugin", "enable", "scaleway")
	expect(t, res, 0, "enabled plugin \"scaleway\"; then: volctl plugin status scaleway\n", "Enable plugin")
	for _, words := range []string{
		"runs        the image docker.io/scaleway/scaleway-csi:v0.3.6 in podman", "privileges  privileged: user root of the host, with all capabilities",
		"namespaces  the network and the process ids of the host", "devices     all devices of the host (/dev)", "/, read and write: the whole host",
		"/etc/x, read only", "secret      SCW_ACCESS_KEY from " + secret,
	} {
		if !strings.Contains(res.stderr, words) {
			t.Errorf("no %q in\n%s", words, res.stderr)
		}
	}
	if strings.Contains(res.stderr, "hunter2") {
		t.Error("the secret is shown")
	}
	want := strings.Replace(text, "enabled: false ", "enabled: true ", 1)
	if got := readFile(t, path); got != want {
		t.Errorf("the file is now\n%s", got)
	}
	info, err := os.Stat(path)
	names, globErr := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	hidden, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*"))
	if err != nil || globErr != nil || info.Mode() != 0o640 || len(names) != 1 || len(hidden) != 0 {
		t.Errorf("mode %v, beside it %q %q, %v", info.Mode(), names, hidden, err)
	}
	expect(t, r.volctl("plugin", "enable", "scaleway", "-y"), 0, "plugin \"scaleway\" is enabled already\n", "")

	// Without an agent, the file must be named.
	writeTestFile(t, path, text)
	offlineRun := run{ctx: t.Context(), socket: "/nonexistent"}
	expect(t, offlineRun.volctl("plugin", "enable", "scaleway", "-y", "--file", path), 0, "enabled plugin \"scaleway\"; then: volctl plugin register "+path+"\n", "privileges")
	expect(t, offlineRun.volctl("plugin", "enable", "other", "-y", "--file", path), 2, "", "defines plugin \"scaleway\"")
}

// TestPluginEnableRefused checks the files that cannot be enabled. They stay as they are.
func TestPluginEnableRefused(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "key")
	empty := filepath.Join(t.TempDir(), "empty")
	writeTestFile(t, secret, "hunter2\n")
	writeTestFile(t, empty, "\n")
	good := strings.Replace(complete, "SECRET", secret, 1)
	for words, text := range map[string]string{
		`:9: the value "project" is not filled in; replace <FILL-IN-project>`: strings.Replace(good, "p1", "<FILL-IN-project>", 1),
		`the value "project" is empty`:                                        strings.Replace(good, "p1", `""`, 1),
		`the value "zone" is empty`:                                           strings.Replace(good, "    SCW_DEFAULT_ZONE: fr-par-1\n", "", 1),
		"secret SCW_ACCESS_KEY: cannot read /nonexistent/key: no such file":   strings.Replace(complete, "SECRET", "/nonexistent/key", 1),
		"secret SCW_ACCESS_KEY: " + empty + " is empty":                       strings.Replace(complete, "SECRET", empty, 1),
	} {
		_, r, path := withFile(t, text)
		res := r.volctl("plugin", "enable", "scaleway", "-y")
		if res.code != 4 || !strings.Contains(res.stderr, words) || readFile(t, path) != text {
			t.Errorf("%s: %+v", words, res)
		}
	}

	// A configuration file beside the secrets counts, too.
	dir := t.TempDir()
	config := filepath.Join(dir, "cinder-cloud.conf")
	f, r, path := withFile(t, "id: cinder\nenabled: false\ncontainer:\n  runtime: podman\n  image: x:v1\n  mounts: ["+config+":/etc/config/cloud.conf:ro]\n")
	f.plugins[0].ID = "cinder"
	for content, words := range map[string]string{
		"[Global]\nauth-url=\"<FILL-IN-auth-url>\"\n": `cinder-cloud.conf: the value "auth-url" is not filled in`,
		"[Global]\nauth-url=\"k\"\nusername=\"\"\n":   `cinder-cloud.conf: the value "username" is not filled in`,
		"": "cannot read " + config,
	} {
		if err := os.Remove(config); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if content != "" {
			writeTestFile(t, config, content)
		}
		expect(t, r.volctl("plugin", "enable", "cinder", "-y"), 4, "", words)
	}
	writeTestFile(t, config, "[Global]\nauth-url=\"k\"\n")
	expect(t, r.volctl("plugin", "enable", "cinder", "-y"), 0, "enabled plugin \"cinder\"; then: volctl plugin status cinder\n", "privileges")
	_ = path

	f.plugins[0].Parts[0] = api.PluginPart{Registered: true}
	expect(t, r.volctl("plugin", "enable", "cinder", "-y"), 4, "", "the plugin was registered at run time, and has no file\nhint: volctl plugin deregister cinder\n")
	f.plugins[0].Parts[0] = api.PluginPart{}
	expect(t, r.volctl("plugin", "enable", "cinder", "-y"), 4, "", "the plugin has no file")
}

// TestPluginDisable checks that a plugin in use is not disabled.
func TestPluginDisable(t *testing.T) {
	const text = "id: scaleway\nsocket: /run/x.sock # here\n"
	f, r, path := withFile(t, text)
	f.plugins[0].State = api.PluginReady
	f.plugins[0].Staged = 1
	expect(t, r.volctl("plugin", "disable", "scaleway"), 4, "", "cannot disable plugin \"scaleway\": the plugin is in use: 1 volume on this host, 0 claims\nhint: volctl claim list --plugin scaleway\n")
	f.plugins[0].Staged = 0
	f.volumes = []api.Volume{{Spec: api.VolumeSpec{ID: "data", PluginID: "scaleway"}, Claims: []api.Claim{{Volume: "data", PluginID: "scaleway", Alloc: "a"}}}}
	expect(t, r.volctl("plugin", "disable", "scaleway"), 4, "", "0 volumes on this host, 1 claim\n")
	if readFile(t, path) != text {
		t.Error("the file of a plugin in use was changed")
	}
	f.volumes = nil
	expect(t, r.volctl("plugin", "disable", "scaleway"), 0, "disabled plugin \"scaleway\"\n", "")
	if got := readFile(t, path); got != "enabled: false\n"+text {
		t.Errorf("the file is now %q", got)
	}
	expect(t, r.volctl("plugin", "disable", "scaleway"), 0, "plugin \"scaleway\" is disabled already\n", "")
}
