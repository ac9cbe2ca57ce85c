package cli

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
)

// storageOf returns a fake agent whose plugin "ebs" has volumes that are registered, on this host or in
// the cluster, and others. It registers every volume except "vol-bad".
func storageOf(t *testing.T) *fake {
	t.Helper()
	f := world()
	for i := range f.plugins {
		if f.plugins[i].ID == "ebs" {
			f.plugins[i].NodeID = "i-0123"
		}
	}
	f.volumes = append(f.volumes, api.Volume{Spec: api.VolumeSpec{ID: "team", PluginID: "other", ExternalID: "vol-team", Scope: "shared"}, Driver: "ebs.csi.aws.com"})
	f.on["GET /v1/plugins/ebs/volumes"] = answers(raw(`{"volume":{"external_id":"vol-0abc","volume":"data","capacity":107374182400}}
{"volume":{"external_id":"vol-team"}}
{"volume":{"external_id":"vol-1","capacity":1073741824,"published_nodes":["i-0123"],"context":{"k":"v"}}}
{"volume":{"external_id":"a/b","published_nodes":["i-9","i-0123"]}}
{"volume":{"external_id":"vol-bad"}}
{"volume":{"external_id":"web"}}
{"end":{}}
`))
	register := func(r *http.Request) (any, error) {
		var s api.VolumeSpec
		if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
			t.Error(err)
		}
		if s.ExternalID == "vol-bad" {
			return nil, &api.Error{Code: api.CodeNotFound, Message: `plugin "ebs" has no volume "vol-bad"`}
		}
		return api.VolumeResult{Outcome: api.OutcomeRegistered, Volume: api.Volume{Spec: s}}, nil
	}
	for _, id := range []string{"vol-1", "a-b-c14cddc0", "vol-bad", "web", "web-4b5e57f6"} {
		f.on["PUT /v1/volumes/"+id] = register
	}
	return f
}

// registered returns the requests that register a volume.
func registered(f *fake) (all []string) {
	for _, line := range f.sent() {
		if strings.HasPrefix(line, "PUT ") {
			all = append(all, line)
		}
	}
	return all
}

// TestUnregistered checks that a volume of the cluster counts as registered, even with another plugin.
func TestUnregistered(t *testing.T) {
	f := storageOf(t)
	expect(t, with(t, f).volctl("plugin", "volumes", "ebs", "--unregistered", "-q"), 0, "vol-1\na/b\nvol-bad\nweb\n", "")

	f.on["GET /v1/plugins/ebs/volumes"] = answers(raw(`{"error":{"code":"refused","message":"plugin \"ebs\" cannot list its volumes"}}` + "\n"))
	for _, args := range [][]string{{"--unregistered"}, {"--all", "-y"}} {
		expect(t, with(t, f).volctl(append([]string{"plugin", "volumes", "ebs"}, args...)...), 4, "",
			"cannot list its volumes\nhint: write a file with the external id of each volume, and register it: volctl volume register FILE\n")
	}
	if sent := registered(f); len(sent) > 0 {
		t.Errorf("sent %q", sent)
	}
}

// TestAdopt registers volumes that the storage has. One of them fails. The command must register the
// others, report each result, and exit with the code of the failure.
func TestAdopt(t *testing.T) {
	f := storageOf(t)
	r := with(t, f)
	got := r.volctl("plugin", "volumes", "ebs", "--all", "-y")
	if got.code != 3 {
		t.Errorf("exit code %d", got.code)
	}
	for _, want := range []string{
		"NEW ID        EXTERNAL ID  CAPACITY  NODES", "a-b-c14cddc0  a/b          -         i-9,i-0123",
		"registered volume \"vol-1\" (external id \"vol-1\")\n", "registered volume \"a-b-c14cddc0\" (external id \"a/b\")\n", "registered volume \"web\"",
	} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("no %q in\n%s", want, got.stdout)
		}
	}
	for _, want := range []string{
		`warning: volume "a-b-c14cddc0": it is published on node "i-9", which is not this host ("i-0123"): another host may write to it`,
		`cannot register volume "vol-bad" as "vol-bad": plugin "ebs" has no volume "vol-bad"`,
	} {
		if !strings.Contains(got.stderr, want) {
			t.Errorf("no %q in\n%s", want, got.stderr)
		}
	}
	if strings.Contains(got.stderr, `"vol-1"`) || strings.Contains(got.stdout, "vol-team") {
		t.Errorf("too much in\n%s%s", got.stdout, got.stderr)
	}
	sent := registered(f)
	if len(sent) != 4 {
		t.Fatalf("sent %q", sent)
	}
	if want := `PUT /v1/volumes/vol-1 {"id":"vol-1","plugin_id":"ebs","external_id":"vol-1","capabilities":[{"access_mode":"single-node-writer","attachment_mode":"file-system"}],"context":{"k":"v"},"reclaim":"retain"}`; sent[0] != want {
		t.Errorf("sent %s\nwant %s", sent[0], want)
	}
}

// TestAdoptOne registers single volumes, with the settings of the flags.
func TestAdoptOne(t *testing.T) {
	f := storageOf(t)
	r := with(t, f)
	// A volume with the id "web" exists already, so the new one gets another id.
	f.volumes = append(f.volumes, api.Volume{Spec: api.VolumeSpec{ID: "web", PluginID: "nfs"}})
	got := r.volctl("plugin", "volumes", "ebs", "--register", "web", "--register", "vol-0abc", "--register", "vol-none", "-y", "-o", "json",
		"--access-mode", "multi-node-reader-only", "--access-mode", "single-node-writer", "--fs-type", "xfs", "--mount-flag", "noatime", "--secret", "key=file:/k", "--scope", "host")
	var body api.ErrorBody
	if err := json.Unmarshal([]byte(got.stderr), &body); err != nil || got.code != 4 ||
		!strings.Contains(body.Error.Message, `cannot register volume "vol-0abc": it is registered already`) || !strings.Contains(body.Error.Message, `cannot register volume "vol-none": plugin "ebs" lists no such volume`) {
		t.Errorf("%+v, %v", got, err)
	}
	var results []api.VolumeResult
	if err := json.Unmarshal([]byte(got.stdout), &results); err != nil || len(results) != 1 || results[0].Volume.Spec.ID == "web" {
		t.Errorf("%+v, %v", got, err)
	}
	if sent := registered(f); len(sent) != 1 || !strings.Contains(sent[0], `"external_id":"web","capabilities":[{"access_mode":"multi-node-reader-only","attachment_mode":"file-system"},{"access_mode":"single-node-writer","attachment_mode":"file-system"}],"mount_options":{"fs_type":"xfs","mount_flags":["noatime"]},"secrets":{"key":{"file":"/k"}},"reclaim":"retain","scope":"host"}`) {
		t.Errorf("sent %q", sent)
	}

	expect(t, r.volctl("plugin", "volumes", "ebs", "--register", "vol-1"), 2, "", "asking for confirmation needs a terminal\nhint: -y\n")
	r.terminal, r.stdin = true, "n\n"
	if got := r.volctl("plugin", "volumes", "ebs", "--register", "vol-1"); got.code != 1 || !strings.Contains(got.stderr, `Register 1 volume of plugin "ebs"? [y/N]`) || !strings.Contains(got.stderr, "nothing was changed") {
		t.Errorf("%+v", got)
	}
	if sent := registered(f); len(sent) > 0 {
		t.Errorf("sent %q", sent)
	}
	r.stdin = "y\n"
	if got := r.volctl("plugin", "volumes", "ebs", "--register", "vol-1"); got.code != 0 || len(registered(f)) != 1 {
		t.Errorf("%+v", got)
	}

	for _, args := range [][]string{{"--all", "--register", "x"}, {"--scope", "host"}, {"-y"}, {"--all", "--limit", "3"}, {"--all", "--access-mode", "x"}, {"--all", "--scope", "x"}, {"--all", "--secret", "a=b"}} {
		if got := r.volctl(append([]string{"plugin", "volumes", "ebs"}, args...)...); got.code != 2 {
			t.Errorf("%q: %+v", args, got)
		}
	}
}
