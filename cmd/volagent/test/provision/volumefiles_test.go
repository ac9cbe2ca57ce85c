package provision_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/csitest"
	"github.com/volagent/volagent/volmgr/volume"
)

// fileAtStart writes a volume file to the directory volumes.d, which the agent reads when it
// starts. It returns the path of the file.
func fileAtStart(h *harness.Host, name, text string) string {
	h.T.Helper()
	dir := filepath.Join(h.Dir, "volumes.d")
	h.Must(os.MkdirAll(dir, 0o755))
	h.Must(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	return filepath.Join(dir, name)
}

// volumeIDs returns the ids of the registered volumes.
func volumeIDs(h *harness.Host) []string {
	h.T.Helper()
	return strings.Fields(h.Volctl("volume", "list", "-q"))
}

// problemOf returns the problems of a subject in the node status, or "" if there are none.
func problemOf(h *harness.Host, subject string) (all string) {
	h.T.Helper()
	for _, p := range harness.Decode[api.Node](h, "node", "status").Problems {
		if p.Subject == subject {
			all += p.Message + " → " + p.Command + "\n"
		}
	}
	return all
}

// storedRecord reads a volume's record from the file of the state database. No agent may be
// running.
func storedRecord(h *harness.Host, id string) volume.Record {
	h.T.Helper()
	snap, _, err := statedb.Inspect(filepath.Join(h.Dir, "d", "state.db"))
	h.Must(err)
	r, ok := snap.Volume(id)
	if !ok {
		h.T.Fatalf("no volume %q", id)
	}
	return r
}

// TestVolumeFiles checks that the agent registers the volumes in the files of volumes.d when it
// starts. The registration creates no storage, and an unchanged file causes no write to the
// database. An invalid file must not prevent the registration of the other files.
func TestVolumeFiles(t *testing.T) {
	t.Parallel()
	h := harness.NewRecorded(t, "10s", nil)
	fileAtStart(h.Host, "a.yaml", "id: a\nplugin_id: rec\nexternal_id: ext/a\nsecrets: {password: pl4nt3d-l1t3r4l}\n---\nid: b\nplugin_id: rec\nexternal_id: ext/b\n")
	fileAtStart(h.Host, "c.json", `{"id": "c", "plugin_id": "rec", "external_id": "ext/c"}`)
	fileAtStart(h.Host, "d.hcl", "id = \"d\"\nplugin_id = \"rec\"\nexternal_id = \"ext/d\"\n")
	fileAtStart(h.Host, ".hidden.yaml", "nonsense")
	fileAtStart(h.Host, "e.yaml~", "nonsense")
	bad := fileAtStart(h.Host, "m.yaml", "id: m\nplugin_id: rec\nexternal_id: ext/m\nsice: 3\n")
	twice := fileAtStart(h.Host, "n.yaml", "\n\nid: b\nplugin_id: rec\nexternal_id: ext/other\n")
	nothing := fileAtStart(h.Host, "o.yaml", "id: o\nplugin_id: rec\n")
	same := fileAtStart(h.Host, "p.yaml", "id: p\nplugin_id: rec\nexternal_id: ext/a\n")
	pv := fileAtStart(h.Host, "q.yaml", "kind: PersistentVolume\nmetadata: {name: q}\nspec: {csi: {driver: csitest.example.com, volumeHandle: x}}\n")
	plugin := fileAtStart(h.Host, "r.yaml", "id: r\nplugin_id: none\nexternal_id: x\n")
	h.Must(syscall.Mkfifo(filepath.Join(h.Dir, "volumes.d", "s.yaml"), 0o600))
	h.Start("rec")
	h.Await("the good ones", func() bool { return slices.Equal(volumeIDs(h.Host), []string{"a", "b", "c", "d"}) })
	for file, words := range map[string][]string{
		bad:     {`line 4: unknown field "sice"`, "systemctl reload volagent"},
		twice:   {`line 3: volume "b" is already in ` + filepath.Join(h.Dir, "volumes.d", "a.yaml") + ":6"},
		nothing: {`line 1: volume "o" has no external_id`},
		same:    {`external_id "ext/a" of plugin "rec" is already in ` + filepath.Join(h.Dir, "volumes.d", "a.yaml") + ":1"},
		pv:      {"is in the format of Kubernetes"},
		plugin:  {`no plugin "none"`, "volctl plugin list"},
		filepath.Join(h.Dir, "volumes.d", "s.yaml"): {"it is not a regular file"},
	} {
		h.Await(file+" is a problem", func() bool { return problemOf(h.Host, file) != "" })
		for _, w := range words {
			if got := problemOf(h.Host, file); !strings.Contains(got, w) {
				t.Errorf("%s: %q is not in %q", file, w, got)
			}
		}
	}
	if f := harness.Doctor(h.Host).Finding("volume-file:" + bad); !strings.Contains(f.What, `line 4: unknown field "sice"`) || f.Do != "fix it, then: systemctl reload volagent" {
		t.Errorf("the doctor finds %+v", f)
	}
	raw, err := os.ReadFile(h.Log.Name())
	h.Must(err)
	if !strings.Contains(string(raw), `at=`+bad+`:4`) {
		t.Error("the log has no line of the bad file")
	}
	mark := h.Mark()
	h.Volctl("volume", "claim", "a")
	h.ExpectSecrets(mark, csitest.NodePublish, map[string]string{"password": "pl4nt3d-l1t3r4l"})
	h.Volctl("volume", "detach", "a")
	huntFiles(h, "registered")

	// An unchanged file must cause no change. A volume must stay registered when its file is
	// removed.
	h.Must(h.Signal(syscall.SIGTERM))
	before := storedRecord(h.Host, "a")
	h.Must(os.Remove(filepath.Join(h.Dir, "volumes.d", "c.json")))
	h.Must(os.WriteFile(bad, []byte("id: m\nplugin_id: rec\nexternal_id: ext/m\n"), 0o600))
	h.Start("rec")
	h.Await("what was mended", func() bool { return slices.Equal(volumeIDs(h.Host), []string{"a", "b", "c", "d", "m"}) })
	if got := problemOf(h.Host, bad); got != "" {
		t.Errorf("a problem still: %s", got)
	}
	h.Must(h.Signal(syscall.SIGTERM))
	if now := storedRecord(h.Host, "a"); now.Generation != before.Generation || now.Volume.Secrets["password"] != before.Volume.Secrets["password"] {
		t.Errorf("the same file made generation %d of %d", now.Generation, before.Generation)
	}
	all, err := csitest.ReadJournal(h.Config.JournalPath())
	h.Must(err)
	if made := all.Only(csitest.CreateVolume); len(made) > 0 {
		t.Errorf("created: %v", made)
	}
}

// TestVolumeFilesReload checks that the agent reads the volume files again on SIGHUP. The agent
// registers new volumes, and merges or refuses changes like the register command. Volumes without a
// file stay registered.
func TestVolumeFilesReload(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	file := fileAtStart(h.Host, "a.yaml", "id: a\nplugin_id: rec\nexternal_id: ext/a\nreclaim: retain\n")
	if got := volumeIDs(h.Host); len(got) != 0 {
		t.Fatalf("without a signal: %q", got)
	}
	hup := func() { h.T.Helper(); h.Must(h.Cmd.Process.Signal(syscall.SIGHUP)) }
	hup()
	h.Await("the new one", func() bool { return slices.Equal(volumeIDs(h.Host), []string{"a"}) })
	fileAtStart(h.Host, "a.yaml", "id: a\nplugin_id: rec\nexternal_id: ext/a\nreclaim: delete\n")
	hup()
	h.Await("the change", func() bool {
		return h.Volctl("volume", "status", "a", "-o", "go-template={{.spec.reclaim}}") == "delete"
	})
	fileAtStart(h.Host, "a.yaml", "id: a\nplugin_id: rec\nexternal_id: ext/b\nreclaim: delete\n")
	hup()
	h.Await("the refusal", func() bool {
		return strings.Contains(problemOf(h.Host, file), `cannot change external_id of volume "a" from "ext/a" to "ext/b"`)
	})
	fileAtStart(h.Host, "b.yaml", "id: b\nplugin_id: rec\nexternal_id: ext/b2\n")
	hup()
	h.Await("the one beside it", func() bool { return slices.Equal(volumeIDs(h.Host), []string{"a", "b"}) })
	said := func(words string) int {
		raw, err := os.ReadFile(h.Log.Name())
		h.Must(err)
		return strings.Count(string(raw), words)
	}
	if n := said("cannot apply a volume file"); n != 1 {
		t.Errorf("the refusal is logged %d times", n)
	}
	fileAtStart(h.Host, "a.yaml", "id: a\nplugin_id: rec\nexternal_id: ext/a\nreclaim: delete\n")
	hup()
	h.Await("the problem is gone", func() bool { return problemOf(h.Host, file) == "" })
	h.Must(os.Remove(file))
	hup()
	h.Await("it is said that it stays", func() bool { return said("the file of a volume is gone; the volume stays registered: volume=a") == 1 })
	if got := volumeIDs(h.Host); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("volumes are %q", got)
	}
	h.Volctl("volume", "deregister", "a")
	h.Volctl("volume", "deregister", "b")
}

// TestVolumeFilesPluginLate checks a volume file whose plugin is not ready yet. The agent registers
// the volume when the plugin becomes ready, and a claim waits for this registration.
func TestVolumeFilesPluginLate(t *testing.T) {
	t.Parallel()
	h := harness.NewRecorded(t, "10s", nil)
	late := filepath.Join(h.Dir, "plugins.d", "rec.yaml")
	aside := filepath.Join(h.Dir, "rec.yaml")
	h.Must(os.Rename(late, aside))
	h.Must(os.WriteFile(late, []byte("id: rec\nsocket: "+h.Dir+"/none.sock\n"), 0o644))
	file := fileAtStart(h.Host, "a.yaml", "id: a\nplugin_id: rec\nexternal_id: ext/a\n")
	h.Start("local")
	if r := h.ExpectExit(6, `waits for plugin "rec"`, "volume", "claim", "a", "--no-wait"); !strings.Contains(r.Err, file+":1") {
		t.Errorf("it is not said where: %s", r.Err)
	}
	h.ExpectExit(6, `waits for plugin "rec"`, "volume", "claim", "a", "--timeout", "100ms")
	h.ExpectExit(3, `no volume "other"`, "volume", "claim", "other")
	done := h.StartVolctl("volume", "claim", "a", "--timeout", "90s")
	h.Must(os.Rename(aside, late))
	if r := <-done; r.Code != 0 {
		t.Errorf("the claim ended with %d: %s", r.Code, r.Err)
	}
	if got := problemOf(h.Host, file); got != "" {
		t.Errorf("a problem still: %s", got)
	}
	h.Volctl("volume", "detach", "a")
}
