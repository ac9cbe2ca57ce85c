package cli

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
)

const (
	pvFile = `{"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pvc-1"}, "spec": {
"accessModes": ["ReadWriteOnce"], "csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}}}`
	pvWarning = "warning: volume \"pvc-1\": the Kubernetes cluster must stop using the volume: end its users before you claim the volume here\n"
	nomadFile = `{"ID": "db", "ExternalID": "vol-2", "PluginID": "aws-ebs0", "Provider": "ebs.csi.aws.com",
"RequestedCapabilities": null, "MountOptions": {"MountFlags": ["[REDACTED]"]}, "WriteAllocs": {"9c2d8a3b-5a5b": null}}`
	nomadWarning = "warning: volume \"db\": first deregister the volume in Nomad: nomad volume deregister db. Allocations that claim the volume in Nomad: 9c2d8a3b\n"
)

// keepsSent makes the fake agent accept registrations. It stores the spec of each registration in
// the map sent, and returns it in the answer.
func keepsSent(f *fake, sent map[string]api.VolumeSpec, ids ...string) {
	for _, id := range ids {
		f.on["PUT /v1/volumes/"+id] = func(r *http.Request) (any, error) {
			var s api.VolumeSpec
			text, err := io.ReadAll(r.Body)
			if err == nil {
				err = json.Unmarshal(text, &s)
			}
			sent[id] = s
			return api.VolumeResult{Outcome: "registered", Volume: api.Volume{Spec: s}}, err
		}
	}
}

// TestRegisterFromOthers checks that a volume from a Kubernetes or Nomad file gets the plugin that
// has the driver in the file.
func TestRegisterFromOthers(t *testing.T) {
	f, sent := world(), map[string]api.VolumeSpec{}
	keepsSent(f, sent, "pvc-1", "db")
	r := with(t, f)
	r.stdin = pvFile
	expect(t, r.volctl("volume", "register", "-"), 0, "registered volume \"pvc-1\"\n", pvWarning)
	if s := sent["pvc-1"]; s.PluginID != "ebs" || s.ExternalID != "vol-1" || s.Reclaim != "retain" || len(s.Capabilities) != 1 || s.Capabilities[0].AccessMode != "single-node-writer" {
		t.Errorf("sent %+v", s)
	}
	r.stdin = nomadFile
	got := r.volctl("volume", "register", "-")
	expect(t, got, 0, "registered volume \"db\"\n", nomadWarning)
	if s := sent["db"]; s.PluginID != "ebs" || s.ExternalID != "vol-2" {
		t.Errorf("sent %+v", s)
	}
	got = r.volctl("volume", "register", "-", "--json")
	var results []api.VolumeResult
	if err := json.Unmarshal([]byte(got.stdout), &results); err != nil || len(results) != 1 || len(results[0].Warnings) != 3 || got.stderr != "" {
		t.Errorf("%v, %+v", err, got)
	}
	r.stdin = pvFile
	expect(t, r.volctl("volume", "validate", "-"), 0, "volume \"pvc-1\" would be registered\n", pvWarning)
	expect(t, r.volctl("volume", "validate", "-", "--offline"), 0, "volume \"pvc-1\" is well-formed; the agent was not asked\n", pvWarning)
	expect(t, r.volctl("volume", "create", "-"), 2, "", "stdin:1:71: a Kubernetes PersistentVolume describes a volume that exists: it can only be registered (volctl volume register)\n")
	none := run{ctx: t.Context(), socket: filepath.Join(shortDir(t), "none"), stdin: pvFile}
	expect(t, none.volctl("volume", "validate", "-"), 7, "", "(the file itself is well-formed)")
	expect(t, none.volctl("volume", "register", "-"), 7, "", "cannot look for volume \"pvc-1\": no agent answers")
}

// TestRegisterFindsThePlugin checks which plugin volctl chooses. If several plugins have the same
// driver, the user must choose.
func TestRegisterFindsThePlugin(t *testing.T) {
	for name, tt := range map[string]struct {
		file    string
		plugins []api.Plugin
		asked   string
		want    string // the id of the chosen plugin
		code    int
		stderr  string
	}{
		"one of two":            {file: pvFile, plugins: []api.Plugin{{ID: "a", Provider: "x"}, {ID: "b", Provider: "ebs.csi.aws.com"}}, want: "b"},
		"several":               {file: pvFile, plugins: []api.Plugin{{ID: "a", Provider: "ebs.csi.aws.com"}, {ID: "b", Provider: "ebs.csi.aws.com"}}, code: 2, stderr: "cannot find the plugin of volume \"pvc-1\": several plugins have the driver \"ebs.csi.aws.com\": \"a\", \"b\"\nhint: name one: --plugin a\n"},
		"several, asked":        {file: pvFile, plugins: []api.Plugin{{ID: "a", Provider: "ebs.csi.aws.com"}, {ID: "b", Provider: "ebs.csi.aws.com"}}, asked: "b", want: "b"},
		"none":                  {file: pvFile, plugins: []api.Plugin{{ID: "a", Provider: "x"}, {ID: "b"}}, code: 3, stderr: "no plugin has the driver \"ebs.csi.aws.com\"; there are \"a\" (x), \"b\" (has not reported its driver yet)\nhint: write a plugin file"},
		"none at all":           {file: pvFile, code: 3, stderr: "no plugin has the driver \"ebs.csi.aws.com\"; there is no plugin\n"},
		"asked, not yet said":   {file: pvFile, plugins: []api.Plugin{{ID: "b"}}, asked: "b", want: "b"},
		"asked, another":        {file: pvFile, plugins: []api.Plugin{{ID: "a", Provider: "x"}}, asked: "a", code: 4, stderr: "plugin \"a\" has the driver \"x\", but the volume needs \"ebs.csi.aws.com\""},
		"Nomad's own name":      {file: nomadFile, plugins: []api.Plugin{{ID: "a", Provider: "ebs.csi.aws.com"}, {ID: "aws-ebs0", Provider: "ebs.csi.aws.com"}}, want: "aws-ebs0"},
		"Nomad's, not yet":      {file: nomadFile, plugins: []api.Plugin{{ID: "aws-ebs0"}}, want: "aws-ebs0"},
		"Nomad's, another":      {file: nomadFile, plugins: []api.Plugin{{ID: "aws-ebs0", Provider: "x"}}, code: 3, stderr: "no plugin has the driver"},
		"Nomad's, no driver":    {file: strings.Replace(nomadFile, "ebs.csi.aws.com", "", 1), want: "aws-ebs0"},
		"bad plugin":            {file: pvFile, asked: "a b", code: 2, stderr: "bad plugin id"},
		"own files name theirs": {file: "id: db\nplugin_id: ebs\nexternal_id: x\n", asked: "ebs", code: 2, stderr: "volume \"db\" names its plugin itself; --plugin is for volumes that Kubernetes or Nomad describe\nhint: remove --plugin\n"},
	} {
		t.Run(name, func(t *testing.T) {
			f, sent := world(), map[string]api.VolumeSpec{}
			f.plugins = tt.plugins
			keepsSent(f, sent, "pvc-1", "db")
			r := with(t, f)
			r.stdin = tt.file
			args := []string{"volume", "register", "-"}
			if tt.asked != "" {
				args = append(args, "--plugin", tt.asked)
			}
			got := r.volctl(args...)
			plugin := sent["pvc-1"].PluginID + sent["db"].PluginID
			if got.code != tt.code || plugin != tt.want || !strings.Contains(got.stderr, tt.stderr) {
				t.Errorf("plugin %q, %+v", plugin, got)
			}
		})
	}
}

// TestRegisterAgainFromOthers checks that a second registration keeps the settings that files of
// Kubernetes and Nomad cannot express.
func TestRegisterAgainFromOthers(t *testing.T) {
	f, sent := world(), map[string]api.VolumeSpec{}
	f.plugins = []api.Plugin{{ID: "a", Provider: "ebs.csi.aws.com"}, {ID: "b", Provider: "ebs.csi.aws.com"}}
	for _, id := range []string{"pvc-1", "db"} {
		f.volumes = append(f.volumes, api.Volume{Driver: "ebs.csi.aws.com", Spec: api.VolumeSpec{
			ID: id, PluginID: "b", Secrets: map[string]api.Secret{"key": {File: "/k"}}, Reclaim: "delete", MountOptions: &api.MountOptions{FSType: "xfs", MountFlags: []string{"noatime"}},
		}})
	}
	keepsSent(f, sent, "pvc-1", "db")
	r := with(t, f)
	r.stdin = pvFile + "\n" + nomadFile
	expect(t, r.volctl("volume", "register", "-"), 0, "registered volume \"pvc-1\"\nregistered volume \"db\"\n", nomadWarning)
	for id, s := range sent {
		if s.PluginID != "b" || s.Secrets["key"].File != "/k" || s.Reclaim != "delete" {
			t.Errorf("%s: sent %+v", id, s)
		}
	}
	if o := sent["db"].MountOptions; o == nil || o.FSType != "" || len(o.MountFlags) != 1 {
		t.Errorf("flags that Nomad hides: %+v", o)
	}
	if o := sent["pvc-1"].MountOptions; o != nil {
		t.Errorf("flags that a PersistentVolume does not have: %+v", o)
	}
}

func TestExport(t *testing.T) {
	f := world()
	f.volumes = f.volumes[:0]
	for _, id := range []string{"data", "web"} {
		f.volumes = append(f.volumes, api.Volume{Spec: api.VolumeSpec{
			ID: id, Name: id, PluginID: "ebs", ExternalID: "vol/" + id, CapacityMin: 10 << 30, Capabilities: []api.Capability{capability("single-node-writer")},
			Secrets: map[string]api.Secret{"key": {Env: "K"}}, Reclaim: "retain",
		}})
	}
	r := with(t, f)
	file := func(id string) string {
		return "id: " + id + "\nplugin_id: ebs\nname: " + id + "\nexternal_id: vol/" + id + "\ncapacity_min: 10GiB\ncapabilities:\n  - access_mode: single-node-writer\n    attachment_mode: file-system\n" +
			"secrets:\n  key: {env: K}\nreclaim: retain\n"
	}
	expect(t, r.volctl("volume", "export", "data"), 0, file("data"), "")
	expect(t, r.volctl("volume", "export", "dat", "-o", "yaml"), 0, file("data"), "")
	expect(t, r.volctl("volume", "export", "--all"), 0, file("data")+"---\n"+file("web"), "")
	expect(t, r.volctl("volume", "export", "--all", "-q"), 0, "data\nweb\n", "")
	expect(t, r.volctl("volume", "export", "--all", "-o", "go-template={{range .}}{{.capacity_min}} {{end}}"), 0, "10GiB 10GiB \n", "")
	got := r.volctl("volume", "export", "data", "-o", "json")
	if !strings.HasPrefix(got.stdout, "{\n  \"id\": \"data\",\n  \"plugin_id\": \"ebs\",\n") || got.code != 0 {
		t.Errorf("%+v", got)
	}
	got = r.volctl("volume", "export", "data", "--hcl")
	if !strings.HasPrefix(got.stdout, "id = \"data\"\nplugin_id = \"ebs\"\n") || got.code != 0 {
		t.Errorf("%+v", got)
	}
	f.sent()
	for _, args := range []string{"data", "--all", "data -o json", "--all --json", "data --hcl"} {
		r.stdin = r.volctl(append([]string{"volume", "export"}, strings.Fields(args)...)...).stdout
		if got := r.volctl("volume", "validate", "-", "--offline"); got.code != 0 || got.stderr != "" {
			t.Errorf("what export %s writes: %+v", args, got)
		}
	}
	expect(t, r.volctl("volume", "export"), 2, "", "name a volume, or use --all\nhint: volctl volume list\n")
	expect(t, r.volctl("volume", "export", "data", "--all"), 2, "", "--all and a volume exclude each other")
	expect(t, r.volctl("volume", "export", "--all", "--hcl"), 2, "", "a file in HCL holds one volume")
	expect(t, r.volctl("volume", "export", "data", "--hcl", "-o", "json"), 2, "", "--hcl and -o exclude each other")
	expect(t, r.volctl("volume", "export", "gone"), 3, "", "cannot export volume \"gone\": no such volume")
	f.volumes = nil
	expect(t, r.volctl("volume", "export", "--all"), 0, "", "")
	expect(t, r.volctl("volume", "export", "--all", "-o", "json"), 0, "[]\n", "")
}

// TestInitByEnding checks that the ending of the file name decides the format of the example.
func TestInitByEnding(t *testing.T) {
	t.Chdir(t.TempDir())
	none := run{ctx: t.Context(), socket: "/none"}
	for file, begin := range map[string]string{"v.hcl": "# A volume for volagent, in the form of Nomad's", "v.json": "{\n  \"id\": \"data\",", "v.yaml": "# A volume for volagent.\n", "v": "# A volume for volagent.\n"} {
		expect(t, none.volctl("volume", "init", file), 0, "wrote "+file+"; edit it, then: volctl volume create "+file+"\n", "")
		text, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(text), begin) {
			t.Errorf("%s: %v\n%s", file, err, text)
		}
		expect(t, none.volctl("volume", "validate", file, "--offline"), 0, "volume \"data\" is well-formed; the agent was not asked\n", "")
	}
}
