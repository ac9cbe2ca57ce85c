package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/agent/recipe"
	"github.com/volagent/volagent/agent/spec"
)

// offline returns a volctl without an agent, in an empty directory.
func offline(t *testing.T) *run {
	t.Helper()
	t.Chdir(t.TempDir())
	return &run{ctx: t.Context(), socket: "/nonexistent"}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func writeTestFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestPluginInit checks that the command writes a file that is disabled, and overwrites nothing.
func TestPluginInit(t *testing.T) {
	none := offline(t) // the command works without an agent
	for _, r := range recipe.All() {
		res := none.volctl("plugin", "init", r.Name, "--secret-dir", "s", "--runtime", "podman")
		if want := "(disabled); "; res.code != 0 || !strings.Contains(res.stdout, want) || !strings.Contains(res.stdout, "then: volctl plugin enable "+r.Name+" --file="+r.Name+".yaml\n") {
			t.Errorf("%s: %+v", r.Name, res)
		}
		_, def, err := pluginfile.Parse(r.Name+".yaml", []byte(readFile(t, r.Name+".yaml")))
		if err != nil || !def.Disabled {
			t.Errorf("%s: %v, %+v", r.Name, err, def)
		}
	}
	expect(t, none.volctl("plugin", "init", "nfs"), 4, "", "cannot write \"nfs.yaml\": the file exists\nhint: volctl plugin init nfs ANOTHER-FILE\n")
	expect(t, none.volctl("plugin", "init", "nfs", "other.yaml", "-q"), 0, "other.yaml\n", "")
	expect(t, none.volctl("plugin", "init", "nfs", "no/such/dir"), 1, "", "no such file or directory")
	expect(t, none.volctl("plugin", "init", "example"), 0, "wrote example.yaml; edit it, then: volctl plugin register example.yaml\n", "")
	expect(t, none.volctl("plugin", "init", "example"), 4, "", "hint: volctl plugin init - prints it")
	if general := readFile(t, "example.yaml"); general != spec.PluginExample() || !strings.Contains(general, "id: mine") {
		t.Errorf("the general one is %q", general)
	}
	expect(t, none.volctl("plugin", "init", "-"), 0, spec.PluginExample(), "")
	expect(t, none.volctl("plugin", "init", "ebss"), 2, "", "volctl: no recipe for \"ebss\" is known\nhint: did you mean ebs?")
	expect(t, none.volctl("plugin", "init", "zzzzzz-thing"), 2, "", "hint: volctl plugin init lists the drivers")
	expect(t, none.volctl("plugin", "init", "vsphere"), 2, "", "cannot run without Kubernetes: the driver asks the Kubernetes API")
	expect(t, none.volctl("plugin", "init", "mountpoint-s3"), 2, "", "hint: instead, use: s3, which mounts buckets with GeeseFS; rclone; juicefs")
	for _, name := range []string{"ebss", "vsphere"} {
		if _, err := os.Stat(name + ".yaml"); err == nil {
			t.Errorf("a file was written for %s", name)
		}
	}

	list := none.volctl("plugin", "init")
	for _, words := range []string{"Disks and file systems of clouds\n", "\n  hetzner  ", "\nStorage of this host\n", "\nDrivers that need Kubernetes", "\n  vsphere  "} {
		if list.code != 0 || !strings.Contains(list.stdout, words) {
			t.Errorf("the list lacks %q: %+v", words, list)
		}
	}
	expect(t, none.volctl("plugin", "init", "-q"), 0, strings.Join(recipe.Names(), "\n")+"\n", "")
}

// TestPluginInitRuntime checks the choice of the container runtime.
func TestPluginInitRuntime(t *testing.T) {
	none := offline(t)
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	shows := func(want string, args ...string) {
		t.Helper()
		res := none.volctl(append([]string{"plugin", "init", "nfs", "-"}, args...)...)
		if res.code != 0 || !strings.Contains(res.stdout, want) {
			t.Errorf("%q: no %q in %+v", args, want, res)
		}
	}
	shows("  runtime: podman\n")
	shows("\n#   podman pull ")
	shows("  pull: never   # missing")
	shows("  pull: missing\n", "--pull")
	shows("  runtime: docker\n", "--runtime", "docker")
	shows("\n#   docker pull ", "--runtime", "docker")
	if err := os.WriteFile(filepath.Join(bin, "docker"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	shows("  runtime: docker\n")
	if err := os.WriteFile(filepath.Join(bin, "podman"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	shows("  runtime: podman\n", "--runtime", "auto")
	expect(t, none.volctl("plugin", "init", "nfs", "--runtime", "lxc"), 2, "", "--runtime \"lxc\" is neither podman nor docker nor auto")
}

// TestPluginInitValues checks --set and --set-secret. A secret appears only in its file.
func TestPluginInitValues(t *testing.T) {
	none := offline(t)
	if err := os.Mkdir("plugins.d", 0o755); err != nil {
		t.Fatal(err)
	}
	const planted = "planted-secret"
	writeTestFile(t, "token", planted+"\n")

	none.stdin = planted + "\n"
	res := none.volctl("plugin", "init", "scaleway", "plugins.d/scaleway.yaml", "--set", "project=p1", "--set", "zone=fr-par-1", "--set-secret", "access-key=token", "--set-secret", "secret-key=-")
	if res.code != 0 || !strings.Contains(res.stdout, "wrote plugins.d/scaleway.yaml (disabled); look at it, then: volctl plugin enable scaleway\n") || strings.Contains(res.stdout+res.stderr, planted) {
		t.Errorf("%+v", res)
	}
	text := readFile(t, "plugins.d/scaleway.yaml")
	dir, err := filepath.EvalSymlinks(".")
	if err != nil {
		t.Fatal(err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{"\nenabled: false\n", "SCW_DEFAULT_PROJECT_ID: p1\n", "SCW_ACCESS_KEY: {file: " + dir + "/secrets/scaleway-access-key}\n"} {
		if !strings.Contains(text, words) {
			t.Errorf("no %q in\n%s", words, text)
		}
	}
	if strings.Contains(text, planted) {
		t.Error("the plugin file contains the secret")
	}
	for _, name := range []string{"scaleway-access-key", "scaleway-secret-key"} {
		info, err := os.Stat("secrets/" + name)
		if err != nil || info.Mode() != 0o600 || readFile(t, "secrets/"+name) != planted {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if info, err := os.Stat("secrets"); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", info, err)
	}

	// An existing secret is not overwritten, and the plugin file is not written either.
	expect(t, none.volctl("plugin", "init", "scaleway", "plugins.d/two.yaml", "--set-secret", "access-key=token"), 4, "", "scaleway-access-key\": the file exists")
	if _, err := os.Stat("plugins.d/two.yaml"); err == nil {
		t.Error("a plugin file was written")
	}

	// Without values, the file says which are missing.
	res = none.volctl("plugin", "init", "scaleway", "--secret-dir", "none")
	if !strings.Contains(res.stdout, "fill in the values project, zone (placeholders <FILL-IN-…>) and the secrets access-key, secret-key, then: ") {
		t.Errorf("%+v", res)
	}

	// A configuration file contains the secret, and only its owner can read it.
	res = none.volctl("plugin", "init", "cinder", "plugins.d/cinder.yaml", "--set", "auth-url=https://k", "--set", "username=u", "--set", "project=p", "--set", "domain=d", "--set-secret", "password=token")
	if res.code != 0 || strings.Contains(res.stdout+res.stderr+readFile(t, "plugins.d/cinder.yaml"), planted) {
		t.Errorf("%+v", res)
	}
	if info, err := os.Stat("secrets/cinder-cloud.conf"); err != nil || info.Mode() != 0o600 || !strings.Contains(readFile(t, "secrets/cinder-cloud.conf"), `password="`+planted+`"`) {
		t.Errorf("the configuration: %v, %v", info, err)
	}

	for content, words := range map[string]string{
		"":                        "the secret is empty",
		"\n":                      "the secret is empty",
		planted + "\n" + planted:  "has several lines",
		planted + "\x00":          "control characters",
		"HCLOUD_TOKEN=" + planted: "the form NAME=VALUE",
	} {
		writeTestFile(t, "bad", content)
		res := none.volctl("plugin", "init", "hetzner", "--secret-dir", "s", "--set-secret", "token=bad")
		if res.code != 2 || !strings.Contains(res.stderr, words) || strings.Contains(res.stderr, planted) {
			t.Errorf("%q: %+v", content, res)
		}
	}
	for _, tt := range []struct{ args, words string }{
		{"hetzner --set location", "--set needs NAME=VALUE"},
		{"hetzner --set locatoin=nbg1", "hetzner has no such value; its values are location\nhint: did you mean location?"},
		{"hetzner --set token=" + planted, "--set token: it is a secret, and a command line shows it to other users\nhint: volctl plugin init hetzner --set-secret=token=FILE"},
		{"hetzner --set location=a --set location=b", "--set location is given twice"},
		{"hetzner --set location=", "the value is empty"},
		{"hetzner --set-secret token", "--set-secret needs NAME=FILE"},
		{"hetzner --set-secret token=" + planted, "--set-secret token: cannot read the file: no such file or directory"},
		{"hetzner --set-secret tokn=token", "its secrets are token, passphrase\nhint: did you mean token?"},
		{"hetzner --set-secret token=- --set-secret passphrase=-", "only one secret can come from stdin"},
		{"hetzner - --set-secret token=token", "--set-secret writes files, and the plugin file is stdout"},
		{"hostpath --set a=b", "hostpath has no values to set"},
	} {
		res := none.volctl(append([]string{"plugin", "init"}, strings.Fields(tt.args)...)...)
		if res.code != 2 || !strings.Contains(res.stderr, tt.words) || strings.Contains(res.stderr, planted) {
			t.Errorf("%s: %+v", tt.args, res)
		}
	}
	if _, err := os.Stat("hetzner.yaml"); err == nil {
		t.Error("a refused command wrote a file")
	}
}

// TestVolumeInitPlugin checks the volume files of known drivers.
func TestVolumeInitPlugin(t *testing.T) {
	none := offline(t)
	for _, r := range recipe.All() {
		verb := "register"
		if r.Creates() {
			verb = "create"
		}
		expect(t, none.volctl("volume", "init", "--plugin", r.Name, r.Name+".yaml"), 0, "wrote "+r.Name+".yaml; edit it, then: volctl volume "+verb+" "+r.Name+".yaml\n", "")
		if docs, err := spec.Read("v.yaml", []byte(readFile(t, r.Name+".yaml"))); err != nil || docs[0].Spec.PluginID != r.Name {
			t.Errorf("%s: %v", r.Name, err)
		}
	}
	expect(t, none.volctl("volume", "init", "--plugin", "smb", "smb.yaml"), 4, "", "hint: volctl volume init --plugin smb ANOTHER-FILE")
	res := none.volctl("volume", "init", "--plugin", "smb", "smb.hcl", "--secret-dir", "/s")
	if docs, err := spec.Read("smb.hcl", []byte(readFile(t, "smb.hcl"))); res.code != 0 || err != nil || docs[0].Spec.Secrets["password"].File != "/s/smb-password" {
		t.Errorf("%+v, %v", res, err)
	}
	expect(t, none.volctl("volume", "init", "--plugin", "smbb"), 2, "", "hint: did you mean smb?")
}
