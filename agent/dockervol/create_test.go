package dockervol

import (
	"errors"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/agent/service"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestCreate checks that Create names a registered volume or creates a new one. A second identical
// call changes nothing. With other options, the error names the options that differ.
func TestCreate(t *testing.T) {
	w, s := newWorld(t, "data", "other")
	ctx := t.Context()
	must(t, s.Create(ctx, docker, "data", nil))
	must(t, s.Create(ctx, docker, "data", opts{"volume": "data", "ro": "no"}))
	says(t, s.Create(ctx, docker, "data", opts{"ro": "", "exclusive": ""}), `docker already has volume "data" with a different exclusive, ro`, "docker volume rm data first; its data stays")
	says(t, s.Create(ctx, docker, "data", opts{"device": "other"}), "with a different volume")

	must(t, s.Create(ctx, docker, "mine", opts{"device": "other", "ro": ""}))
	says(t, s.Create(ctx, docker, "yours", opts{"device": "other", "ro": ""}), `docker already knows volume "other" as "mine"`, "name: mine")
	must(t, s.Create(ctx, podman, "yours", opts{"device": "other"})) // podman's names are separate from docker's

	must(t, s.Create(ctx, docker, "new", opts{"plugin": "p", "size": "1GiB", "param.a": "b", "reclaim": "delete"}))
	if v := w.volumes["new"].Volume; v.PluginID != "p" || v.CapacityMin != 1<<30 || v.Parameters["a"] != "b" || v.Reclaim != "delete" ||
		len(v.Capabilities) != 1 || v.Capabilities[0] != (call.Capability{Access: call.SingleNodeWriter, Attachment: call.FileSystem}) {
		t.Errorf("made as %+v", v)
	}
	must(t, s.Create(ctx, docker, "new", opts{"plugin": "p", "o": "size=1GiB,param.a=b"}))
	says(t, s.Create(ctx, docker, "new", opts{"plugin": "q", "size": "2GiB", "param.a": "c", "fs_type": "xfs"}),
		`volume "new" exists and differs from the options: plugin: "p" → "q"; size: 1GiB → 2GiB; fs_type: none → "xfs"; param.a: "b" → "c"`)
	says(t, s.Create(ctx, docker, "new", opts{"plugin": "p", "param.z": ""}), `param.z: none → ""`)
	says(t, s.Create(ctx, docker, "x", opts{"plugin": "none"}), `no plugin "none" (hint: volctl plugin list)`)
	says(t, s.Create(ctx, docker, "-x", opts{"device": "other"}), `volume name "-x" begins with "-"`)
	if _, ok := w.RuntimeVolume("docker", "x"); ok {
		t.Error("a name stands for nothing")
	}
	w.want("events", w.events, "runtime-created", "runtime-created", "runtime-created", "runtime-created")
}

// TestCreateForRemappedRoot checks the owner of a volume that docker creates. Its root directory
// belongs to root in docker's containers, unless the options name an owner. Other volumes get no
// owner. Create does not compare this default owner with the options of an existing name.
func TestCreateForRemappedRoot(t *testing.T) {
	w, s := newWorld(t, "data")
	process := func(runtime string, pid int) Caller {
		return Caller{Caller: service.Caller{Peer: peer.Peer{PID: pid}}, Runtime: runtime}
	}
	dockerd, later := process("docker", 5), process("docker", 6)
	w.remap = map[int][2]string{5: {"200000", "200001"}, 7: {"200000", ""}}
	root := volume.Ownership{UID: "200000", GID: "200001", Default: true}
	for name, tt := range map[string]struct {
		from Caller
		opts opts
		want volume.Ownership
	}{
		"made":          {dockerd, opts{"plugin": "p"}, root},
		"mode":          {dockerd, opts{"plugin": "p", "mode": "770"}, volume.Ownership{UID: "200000", GID: "200001", Mode: "0770", Default: true}},
		"uid":           {dockerd, opts{"plugin": "p", "uid": "0"}, volume.Ownership{UID: "0"}},
		"gid":           {dockerd, opts{"plugin": "p", "gid": "9"}, volume.Ownership{GID: "9"}},
		"data":          {dockerd, nil, volume.Ownership{}},
		"not remapped":  {later, opts{"plugin": "p"}, volume.Ownership{}},
		"half an owner": {process("docker", 7), opts{"plugin": "p"}, volume.Ownership{}},
		"podman's":      {process("podman", 5), opts{"plugin": "p"}, volume.Ownership{}},
	} {
		must(t, s.Create(t.Context(), tt.from, name, tt.opts))
		for range 2 {
			if v, ok := w.RuntimeVolume(tt.from.Runtime, name); !ok || v.Own != tt.want {
				t.Errorf("%s: %t, %+v, want %+v", name, ok, v.Own, tt.want)
			}
			must(t, s.Create(t.Context(), process(tt.from.Runtime, later.PID), name, tt.opts))
		}
	}
	says(t, s.Create(t.Context(), dockerd, "made", opts{"plugin": "p", "uid": "200000"}), "with a different uid")

	// The volume stays after its name is removed. A second Create then uses an existing volume.
	must(t, s.Remove(t.Context(), docker, "made"))
	must(t, s.Create(t.Context(), dockerd, "made", opts{"plugin": "p"}))
	if v, _ := w.RuntimeVolume("docker", "made"); v.Own.Asked() {
		t.Errorf("a volume that existed: %+v", v.Own)
	}
}

// TestCreateHints checks that the error for an unknown name suggests the volume that the caller
// probably means.
func TestCreateHints(t *testing.T) {
	w, s := newWorld(t, "data", "b_c")
	w.add(volume.Volume{ID: "half", PluginID: "p", Provision: volume.Provisioning})
	for name, want := range map[string][]string{
		"nope":                   {`no volume "nope" is registered`, "volctl volume register FILE", "-o plugin=local -o size=1GiB"},
		"systemd-data":           {`no volume "systemd-data"`, "VolumeName=data into the .volume file"},
		"systemd-nope":           {"volctl volume register FILE"},
		"shop_data":              {"name: data below it in the compose file"},
		"my_shop_b_c":            {"name: b_c below it"},
		"half":                   {`volume "half" is not ready: creating has not finished`},
		"a/b":                    {`volume name "a/b" contains a slash`},
		strings.Repeat("x", 200): {"has 200 bytes; at most 128 are allowed"},
		"":                       {"volume name is missing"},
	} {
		says(t, s.Create(t.Context(), docker, name, nil), want...)
	}
	says(t, s.Create(t.Context(), docker, "x", opts{"device": "systemd-data"}), `no volume "systemd-data" is registered (hint: volctl volume list)`)
	says(t, s.Create(t.Context(), podman, "data", opts{"exclusive": ""}), "exclusive is not possible with podman")
	if len(w.names) > 0 {
		t.Errorf("stored: %v", w.names)
	}
}

// TestGet checks that a runtime sees only the volumes that it has created.
func TestGet(t *testing.T) {
	w, s := newWorld(t, "data", "other")
	ctx := t.Context()
	if _, err := s.Get(docker, "data"); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("a registered volume that docker did not create: %v", err)
	}
	must(t, s.Create(ctx, docker, "name", opts{"device": "data"}))
	if _, err := s.Get(podman, "name"); err == nil {
		t.Error("podman has docker's")
	}
	v, err := s.Get(docker, "name")
	must(t, err)
	if v.Mountpoint != "" || v.Status["state"] != "free" || v.Status["volume"] != "data" || v.CreatedAt != "2001-09-09T01:46:40Z" {
		t.Errorf("free: %+v", v)
	}
	w.mounted(s, "name", "c1")
	if path, err := s.Path(docker, "name"); err != nil || path != "/t/docker/data" {
		t.Errorf("it is at %q, %v", path, err)
	}
	must(t, s.Create(ctx, docker, "a", opts{"device": "other"}))
	if l := s.List(docker); len(l) != 2 || l[0].Name != "a" || l[1].Status["state"] != "mounted" || l[1].Status["references"] != 1 {
		t.Errorf("the list: %+v", l)
	}
	delete(w.volumes, "data") // simulate a forced deregister
	v, err = s.Get(docker, "name")
	must(t, err)
	if v.Status["state"] != "deregistered" || v.Mountpoint != "" {
		t.Errorf("deregistered: %+v", v)
	}
	must(t, s.Unmount(ctx, docker, "name", "c1"))
	_, err = s.Mount(ctx, docker, "name", "c2")
	says(t, err, `volume "data", which docker knows as "name", was deregistered`, "docker volume rm name")
	w.want("references", w.refs("name"))
	must(t, s.Remove(ctx, docker, "name"))
}
