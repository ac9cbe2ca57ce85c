package cli

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// unwell returns a fake agent whose plugins report problems.
func unwell() *fake {
	f := world()
	disk := api.Finding{By: "node", Severity: "inaccessible", Reason: "PathDown", Message: "no path to\nthe array \x1b[31m"}
	raid := api.Finding{By: "controller", Severity: "degraded"}
	old := ago(20 * time.Minute)
	full := &api.Stats{Volume: "data", At: old, BytesTotal: 100 << 30, BytesUsed: 41 << 30}
	for i := range f.volumes {
		v := &f.volumes[i]
		if v.Spec.ID == "data" {
			v.Spec.Mutable, v.Topologies = map[string]string{"iops": "4000", "tier": "fast"}, []map[string]string{{"zone": "a"}, {"zone": "b", "rack": "1"}}
			v.Report = &api.Report{Stats: full, Health: []api.Finding{disk, raid}, CheckedAt: map[string]time.Time{"node": old, "controller": ago(time.Second)}}
		}
	}
	f.on["GET /v1/volumes/data/report"] = func(r *http.Request) (any, error) {
		if r.URL.Query().Get("storage") == "" {
			// If the plugin does not answer, volctl shows the previous report.
			return nil, &api.Error{Code: api.CodePluginUnavailable, Message: "gone"}
		}
		return api.Report{
			Health: []api.Finding{disk}, CheckedAt: map[string]time.Time{"node": now},
			Storage: &api.StorageVolume{ExternalID: "vol-0abc", Capacity: 100 << 30, Topologies: []map[string]string{{"zone": "a"}}, PublishedNodes: []string{"i-0123", "i-9"}},
			Silent:  []string{"NodeGetVolumeStats: no answer in time"},
		}, nil
	}
	f.on["GET /v1/plugins/ebs/volumes"] = answers(raw(`{"volume":{"external_id":"vol-0abc","volume":"data","capacity":107374182400,"published_nodes":["i-0123"]}}
{"volume":{"external_id":"vol-leak","clone_id":"vol-0abc","context":{"k":"v"},"topologies":[{"zone":"a"},{"zone":"b"}],"health":[{"by":"controller","severity":"abnormal","message":"slow"}]}}
{"end":{"more":true}}
`))
	f.on["GET /v1/plugins/nfs/volumes"] = answers(raw(`{"volume":{"external_id":"a"}}
{"error":{"code":"failed","message":"plugin \"nfs\" returns an endless list for ListVolumes: it returned token \"x\" twice","hint":"volctl plugin logs nfs"}}
`))
	f.on["GET /v1/plugins/rbd/volumes"] = answers(raw(`{"volume":{"external_id":"a"}}` + "\n"))
	f.on["POST /v1/plugins/ebs/capacity"] = answers(api.Capacity{Available: 5 << 40, Largest: new(int64(1 << 40)), Smallest: new(int64(1 << 20))})
	f.on["GET /v1/plugins/ebs/health"] = answers(api.PluginHealth{
		Storage: []api.Finding{{By: "node", Severity: "degraded", Reason: "OnePathLeft"}}, Asked: []string{"NodeGetStorageHealth", "ControllerListVolumeHealth"}, More: true,
		Volumes: []api.VolumeHealth{{ExternalID: "vol-0abc", Volume: "data", Health: []api.Finding{raid, disk}}, {ExternalID: "vol-9", Health: []api.Finding{raid}}},
	})
	f.on["GET /v1/plugins/rbd/health"] = answers(api.PluginHealth{Asked: []string{"NodeGetStorageHealth", "ControllerListVolumeHealth"}})
	f.on["GET /v1/plugins/nfs/health"] = answers(api.PluginHealth{Asked: []string{}, Silent: []string{"NodeGetStorageHealth: no answer in time"}})
	return f
}

func TestStorageScreens(t *testing.T) {
	golden(t, filepath.Join("testdata", "storage.txt"), session(with(t, unwell()), words(
		"volume status data", "volume status data -o wide", "volume status data -o yaml",
		"plugin volumes ebs", "plugin volumes eb -o wide --unregistered", "plugin volumes ebs -q", "plugin volumes ebs -o json", "plugin volumes nfs", "plugin volumes rbd", "plugin volumes x", "plugin volumes ebs --limit -1",
		"plugin capacity ebs", "plugin capacity ebs -o json", "plugin capacity ebs --param x", "plugin capacity ebs --access-mode single", "plugin capacity nfs",
		"plugin health ebs", "plugin health rbd", "plugin health nfs", "plugin health ebs -o json",
	)...))
}

func TestStorageRequests(t *testing.T) {
	f := unwell()
	r := with(t, f)
	r.volctl("plugin", "volumes", "ebs")
	r.volctl("plugin", "volumes", "ebs", "-limit", "5")
	r.volctl("plugin", "volumes", "ebs", "--limit=0")
	r.volctl("plugin", "capacity", "ebs", "--param", "a=b=c", "--param", "d=", "--topology", "zone=a", "--attachment-mode", "block-device")
	r.volctl("volume", "status", "data", "-o", "wide")
	r.volctl("volume", "status", "data", "-q")
	expectSent(t, f,
		"GET /v1/plugins/ebs", "GET /v1/plugins/ebs/volumes?limit=1000",
		"GET /v1/plugins/ebs", "GET /v1/plugins/ebs/volumes?limit=5",
		"GET /v1/plugins/ebs", "GET /v1/plugins/ebs/volumes",
		"GET /v1/plugins/ebs", `POST /v1/plugins/ebs/capacity {"capabilities":[{"access_mode":"single-node-writer","attachment_mode":"block-device"}],"parameters":{"a":"b=c","d":""},"topology":{"zone":"a"}}`,
		"GET /v1/volumes/data?cluster=true", "GET /v1/volumes/data/report?storage=true&within=350ms",
		"GET /v1/volumes/data?cluster=true",
	)
}

// TestStatsOfADisk checks that the screen for a block device shows only its size. The plugin cannot
// know how much of a block device is in use.
func TestStatsOfADisk(t *testing.T) {
	f := world()
	disk := api.Stats{Volume: "data", At: now, BytesTotal: 100 << 30}
	f.on["GET /v1/volumes/data/stats"] = answers(disk)
	f.on["GET /v1/volumes/data/report"] = answers(api.Report{Stats: &disk})
	r := with(t, f)
	expect(t, r.volctl("volume", "stats", "data"), 0, "       USED  AVAILABLE  TOTAL   USE\nBytes  -     -          100GiB  -\n", "")
	head, _, _ := strings.Cut(r.volctl("volume", "status", "data").stdout, "\n")
	if !strings.HasSuffix(head, " 100GiB") || strings.Contains(head, "%") {
		t.Errorf("status: %q", head)
	}
}

func TestModify(t *testing.T) {
	f := world()
	changed := &api.VolumeResult{Outcome: "modified", Changes: []string{`mutable_parameters: {"iops":"100"} → {"iops":"200"}`}, Volume: f.volumes[2]}
	f.on["POST /v1/volumes/data/modify"] = answers(changed)
	r := with(t, f)
	expect(t, r.volctl("volume", "modify", "data", "iops=200", "note=a=b"), 0, `modified volume "data": mutable_parameters: {"iops":"100"} → {"iops":"200"}`+"\n", "")
	expectSent(t, f, `POST /v1/volumes/data/modify {"mutable_parameters":{"iops":"200","note":"a=b"}}`)
	expect(t, r.volctl("volume", "modify", "data", "iops=200", "-q"), 0, "data\n", "")
	if res := r.volctl("volume", "modify", "data", "iops=200", "-o", "json"); res.code != 0 || !strings.Contains(res.stdout, `"outcome": "modified"`) {
		t.Errorf("json: %+v", res)
	}
	f.on["POST /v1/volumes/data/modify"] = answers(&api.VolumeResult{Outcome: "unchanged", Volume: f.volumes[2]})
	expect(t, r.volctl("volume", "modify", "data", "iops=200"), 0, "volume \"data\" is unchanged\n", "")
	f.sent()
	for _, args := range [][]string{{"data"}, {}, {"data", "iops"}, {"data", "=x"}, {"data", "a=1", "a=2"}, {"a/b", "a=1"}} {
		if res := r.volctl(append([]string{"volume", "modify"}, args...)...); res.code != 2 || res.stderr == "" {
			t.Errorf("%q: %+v", args, res)
		}
	}
	expectSent(t, f)
	f.on["POST /v1/volumes/data/modify"] = refuses(api.Error{Code: api.CodeRefused, Message: `plugin "ebs" cannot modify volumes`})
	expect(t, r.volctl("volume", "modify", "data", "iops=200"), 4, "", `volctl: cannot modify volume "data": plugin "ebs" cannot modify volumes`)
	// A command that changes state accepts only a complete id.
	expect(t, r.volctl("volume", "modify", "dat", "iops=200"), 3, "", `near: "data"`)
}

// TestCreateMutable checks that flags can set mutable parameters.
func TestCreateMutable(t *testing.T) {
	f := world()
	f.on["POST /v1/volumes/new/create"] = answers(&api.VolumeResult{Outcome: "created", Volume: api.Volume{Spec: api.VolumeSpec{ID: "new"}}})
	expect(t, with(t, f).volctl("volume", "create", "new", "--plugin", "ebs", "--param", "a=b", "--mutable-param", "iops=100"), 0, "created volume \"new\"\n", "")
	if sent := f.sent()[0]; !strings.Contains(sent, `"parameters":{"a":"b"},"mutable_parameters":{"iops":"100"}`) {
		t.Errorf("sent %s", sent)
	}
}
