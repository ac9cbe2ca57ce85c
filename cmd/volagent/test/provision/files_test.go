package provision_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// TestRegisterFormats registers volumes of the bundled driver from three file formats: HCL, a
// PersistentVolume, and the output of Nomad. Each volume must still contain its data at the next
// claim.
func TestRegisterFormats(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t)
	h.Start("local")
	external := map[string]string{}
	for _, id := range []string{"hcl", "pv", "nomad"} {
		h.Volctl("volume", "create", id, "--plugin", "local", "--size", "10MiB", "--param", "type=directory")
		h.Must(os.WriteFile(filepath.Join(h.Volctl("volume", "claim", id), "data"), []byte(id), 0o644))
		h.Volctl("volume", "detach", id)
		external[id] = h.Volctl("volume", "status", id, "-o", "go-template={{.spec.external_id}}")
		h.Volctl("volume", "deregister", id)
	}
	file := func(name, text string, args ...any) string {
		path := filepath.Join(h.Dir, name)
		h.Must(os.WriteFile(path, fmt.Appendf(nil, text, args...), 0o600))
		return path
	}
	files := map[string]string{
		"hcl": file("v.hcl", `
id          = "hcl"
type        = "csi"
plugin_id   = "local"
external_id = %q
capability { access_mode = "single-node-writer", attachment_mode = "file-system" }
`, external["hcl"]),
		"pv": file("pv.yaml", `apiVersion: v1
kind: PersistentVolume
metadata: {name: pv}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 10Mi}
  persistentVolumeReclaimPolicy: Delete
  csi: {driver: local.csi.volagent, volumeHandle: %s}
`, external["pv"]),
		"nomad": file("nomad", `{"ID": "nomad", "Name": "nomad", "ExternalID": %q, "PluginID": "hostpath", "Provider": "local.csi.volagent", "Context": null,
"RequestedCapabilities": [{"AccessMode": "single-node-writer", "AttachmentMode": "file-system"}], "WriteAllocs": {"0a1b2c3d-0000": null}}`, external["nomad"]),
	}
	for id, warning := range map[string]string{"hcl": "", "pv": "its reclaim policy in the cluster is Delete", "nomad": "Allocations that claim the volume in Nomad: 0a1b2c3d"} {
		h.ExpectExit(0, `volume "`+id+`" would be registered`, "volume", "validate", files[id])
		r := h.ExpectExit(0, `registered volume "`+id+`"`, "volume", "register", files[id])
		if warning == "" && r.Err != "" || !strings.Contains(r.Err, warning) {
			t.Errorf("%s: warnings %q", id, r.Err)
		}
		h.ExpectExit(0, `volume "`+id+`" is unchanged`, "volume", "register", files[id])
		if plugin := h.Volctl("volume", "status", id, "-o", "go-template={{.spec.plugin_id}} {{.spec.reclaim}}"); plugin != "local retain" {
			t.Errorf("%s: plugin and reclaim are %s", id, plugin)
		}
		path := h.Volctl("volume", "claim", id)
		if data, err := os.ReadFile(filepath.Join(path, "data")); err != nil || string(data) != id {
			t.Errorf("%s: %q, %v", id, data, err)
		}
		h.Volctl("volume", "detach", id)
	}
	// A file in any format cannot register the same storage under another id.
	h.ExpectExit(4, `is already registered as volume "pv"`, "volume", "validate", file("twice.hcl", "id = \"twice\"\nplugin_id = \"local\"\nexternal_id = %q\n", external["pv"]))
	h.ExpectExit(4, `cannot change name of volume "hcl" from "hcl" to "other"`, "volume", "register", file("name.hcl", "id = \"hcl\"\nname = \"other\"\nplugin_id = \"local\"\n"))
	h.ExpectExit(3, `no plugin has the driver "ebs.csi.aws.com"; there are "local" (local.csi.volagent)`, "volume", "register",
		file("ebs.yaml", "kind: PersistentVolume\nmetadata: {name: ebs}\nspec: {csi: {driver: ebs.csi.aws.com, volumeHandle: x}}\n"))
}

// TestExport checks that volumes can be registered again from their exported text, in every format.
func TestExport(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t)
	h.Must(os.WriteFile(filepath.Join(h.Dir, "key"), []byte("x"), 0o600))
	h.Start("local")
	file := filepath.Join(h.Dir, "volumes")
	h.Must(os.WriteFile(file, []byte(`id: full
plugin_id: local
name: "5"
capacity_min: 20MiB
capacity_max: 1GB
capabilities: [{access_mode: single-node-multi-writer}, {access_mode: single-node-writer}]
mount_options: {fs_type: ext4, mount_flags: [noatime]}
parameters: {type: image}
secrets: {key: {file: `+h.Dir+`/key}}
reclaim: delete
---
{id: "a b", plugin_id: local}
`), 0o600))
	h.Volctl("volume", "create", file)
	all := h.Volctl("volume", "export", "--all")
	for _, args := range [][]string{{"--all"}, {"--all", "-o", "json"}, {"full"}, {"full", "-o", "json"}, {"full", "--hcl"}} {
		h.Must(os.WriteFile(file, []byte(h.Volctl(append([]string{"volume", "export"}, args...)...)), 0o600))
		ids := []string{"full"}
		if args[0] == "--all" {
			ids = append(ids, "a b")
		}
		for _, id := range ids {
			h.ExpectExit(0, `volume "`+id+`" is unchanged`, "volume", "register", file)
			h.Volctl("volume", "deregister", id)
		}
		h.Volctl("volume", "register", file)
		if now := h.Volctl("volume", "export", "--all"); now != all {
			t.Errorf("%v: volumes are\n%s\nthey were\n%s", args, now, all)
		}
	}
	h.Volctl("volume", "claim", "full")
	h.Volctl("volume", "detach", "full")
}

// TestCreateChangesNoVolume checks that the create command never changes an existing volume, with
// flags or with a file. Only the register command may change a volume.
func TestCreateChangesNoVolume(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t)
	h.Start("local")
	flags := []string{"volume", "create", "data", "--plugin", "local", "--param", "type=directory"}
	h.Volctl(append(flags, "--mount-flag", "noatime")...)
	before := h.Volctl("volume", "export", "data")
	h.ExpectExit(0, `volume "data" is unchanged`, append(flags, "--mount-flag", "noatime")...)
	h.ExpectExit(0, `volume "data" is unchanged`, "volume", "create", "data", "--plugin", "local", "--mount-flag", "noatime")

	differs := func(args []string, texts ...string) {
		t.Helper()
		r := h.Try(args...)
		for _, want := range append(texts, `volume "data" exists and differs from the request: `, "hint: ", "volctl volume export data") {
			if r.Code != 4 || !strings.Contains(r.Err, want) {
				t.Errorf("%v: exit code %d, %s; want 4 and %q", args, r.Code, r.Err, want)
			}
		}
		if now := h.Volctl("volume", "export", "data"); now != before {
			t.Errorf("%v changed the volume to\n%s\nfrom\n%s", args, now, before)
		}
	}
	file := filepath.Join(h.Dir, "data.yaml")
	h.Must(os.WriteFile(file, []byte("{id: data, plugin_id: local, capacity_min: 1GiB, reclaim: delete, parameters: {type: image}}"), 0o600))
	differs(flags, `mount_options: {"mount_flags":["noatime"]} → none`)
	differs(append(flags, "--mount-flag", "noatime", "--size", "1GiB"), "capacity_min: none → 1GiB")
	differs([]string{"volume", "create", file}, "capacity_min: none → 1GiB", `parameters: {"type":"directory"} → {"type":"image"}`, `reclaim: "retain" → "delete"`)
	differs([]string{"volume", "validate", file}, `reclaim: "retain" → "delete"`)

	h.Must(os.WriteFile(file, []byte(strings.Replace(before, "reclaim: retain", "reclaim: delete", 1)), 0o600))
	h.ExpectExit(0, `updated volume "data": reclaim: "retain" → "delete"`, "volume", "register", file)
}
