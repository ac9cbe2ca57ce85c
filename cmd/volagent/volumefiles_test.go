package main_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/csitest"
	"github.com/volagent/volagent/volmgr/volume"
)

// fileAtStart writes a volume file to the directory that the agent reads at its start. It returns
// the path of the file.
func (h *host) fileAtStart(name, text string) string {
	h.t.Helper()
	dir := filepath.Join(h.dir, "volumes.d")
	h.must(os.MkdirAll(dir, 0o755))
	h.must(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	return filepath.Join(dir, name)
}

// ids returns the ids of the registered volumes.
func (h *host) ids() []string {
	h.t.Helper()
	return strings.Fields(h.volctl("volume", "list", "-q"))
}

// problem returns the problems of a subject in the node status, or "" if there are none.
func (h *host) problem(subject string) (all string) {
	h.t.Helper()
	for _, p := range decode[api.Node](h, "node", "status").Problems {
		if p.Subject == subject {
			all += p.Message + " → " + p.Command + "\n"
		}
	}
	return all
}

// stored returns a volume's record from the state database. It reads the file, so the agent must
// not run.
func (h *host) stored(id string) volume.Record {
	h.t.Helper()
	snap, _, err := statedb.Inspect(filepath.Join(h.dir, "d", "state.db"))
	h.must(err)
	r, ok := snap.Volume(id)
	if !ok {
		h.t.Fatalf("no volume %q", id)
	}
	return r
}

// TestVolumeFiles checks that the agent registers the volumes of the files in volumes.d at its
// start. The registration creates no storage, and an unchanged file causes no write. An invalid
// file does not prevent the registration of the other files.
func TestVolumeFiles(t *testing.T) {
	t.Parallel()
	h := prepared(t, "10s", nil)
	h.fileAtStart("a.yaml", "id: a\nplugin_id: rec\nexternal_id: ext/a\nsecrets: {password: pl4nt3d-l1t3r4l}\n---\nid: b\nplugin_id: rec\nexternal_id: ext/b\n")
	h.fileAtStart("c.json", `{"id": "c", "plugin_id": "rec", "external_id": "ext/c"}`)
	h.fileAtStart("d.hcl", "id = \"d\"\nplugin_id = \"rec\"\nexternal_id = \"ext/d\"\n")
	h.fileAtStart(".hidden.yaml", "nonsense")
	h.fileAtStart("e.yaml~", "nonsense")
	bad := h.fileAtStart("m.yaml", "id: m\nplugin_id: rec\nexternal_id: ext/m\nsice: 3\n")
	twice := h.fileAtStart("n.yaml", "\n\nid: b\nplugin_id: rec\nexternal_id: ext/other\n")
	nothing := h.fileAtStart("o.yaml", "id: o\nplugin_id: rec\n")
	same := h.fileAtStart("p.yaml", "id: p\nplugin_id: rec\nexternal_id: ext/a\n")
	pv := h.fileAtStart("q.yaml", "kind: PersistentVolume\nmetadata: {name: q}\nspec: {csi: {driver: csitest.example.com, volumeHandle: x}}\n")
	plugin := h.fileAtStart("r.yaml", "id: r\nplugin_id: none\nexternal_id: x\n")
	h.must(syscall.Mkfifo(filepath.Join(h.dir, "volumes.d", "s.yaml"), 0o600))
	h.start("rec")
	h.await("the good ones", func() bool { return slices.Equal(h.ids(), []string{"a", "b", "c", "d"}) })
	for file, words := range map[string][]string{
		bad:     {`line 4: unknown field "sice"`, "systemctl reload volagent"},
		twice:   {`line 3: volume "b" is already in ` + filepath.Join(h.dir, "volumes.d", "a.yaml") + ":6"},
		nothing: {`line 1: volume "o" has no external_id`},
		same:    {`external_id "ext/a" of plugin "rec" is already in ` + filepath.Join(h.dir, "volumes.d", "a.yaml") + ":1"},
		pv:      {"is in the format of Kubernetes"},
		plugin:  {`no plugin "none"`, "volctl plugin list"},
		filepath.Join(h.dir, "volumes.d", "s.yaml"): {"it is not a regular file"},
	} {
		h.await(file+" is a problem", func() bool { return h.problem(file) != "" })
		for _, w := range words {
			if got := h.problem(file); !strings.Contains(got, w) {
				t.Errorf("%s: %q is not in %q", file, w, got)
			}
		}
	}
	if f := h.doctor().finding("volume-file:" + bad); !strings.Contains(f.What, `line 4: unknown field "sice"`) || f.Do != "fix it, then: systemctl reload volagent" {
		t.Errorf("the doctor finds %+v", f)
	}
	raw, err := os.ReadFile(h.log.Name())
	h.must(err)
	if !strings.Contains(string(raw), `at=`+bad+`:4`) {
		t.Error("the log has no line of the bad file")
	}
	mark := h.mark()
	h.volctl("volume", "claim", "a")
	h.gave(mark, csitest.NodePublish, map[string]string{"password": "pl4nt3d-l1t3r4l"})
	h.volctl("volume", "detach", "a")
	h.huntFiles("registered")

	// An unchanged file causes no change. A volume whose file was removed stays registered.
	h.must(h.signal(syscall.SIGTERM))
	before := h.stored("a")
	h.must(os.Remove(filepath.Join(h.dir, "volumes.d", "c.json")))
	h.must(os.WriteFile(bad, []byte("id: m\nplugin_id: rec\nexternal_id: ext/m\n"), 0o600))
	h.start("rec")
	h.await("what was mended", func() bool { return slices.Equal(h.ids(), []string{"a", "b", "c", "d", "m"}) })
	if got := h.problem(bad); got != "" {
		t.Errorf("a problem still: %s", got)
	}
	h.must(h.signal(syscall.SIGTERM))
	if now := h.stored("a"); now.Generation != before.Generation || now.Volume.Secrets["password"] != before.Volume.Secrets["password"] {
		t.Errorf("the same file made generation %d of %d", now.Generation, before.Generation)
	}
	all, err := csitest.ReadJournal(h.cfg.JournalPath())
	h.must(err)
	if made := all.Only(csitest.CreateVolume); len(made) > 0 {
		t.Errorf("created: %v", made)
	}
}

// TestVolumeFilesReload checks that the agent reads the files again at SIGHUP. It registers new
// volumes. It merges or refuses changes as the register command does. Volumes without a file stay
// registered.
func TestVolumeFilesReload(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	file := h.fileAtStart("a.yaml", "id: a\nplugin_id: rec\nexternal_id: ext/a\nreclaim: retain\n")
	if got := h.ids(); len(got) != 0 {
		t.Fatalf("without a signal: %q", got)
	}
	hup := func() { h.t.Helper(); h.must(h.cmd.Process.Signal(syscall.SIGHUP)) }
	hup()
	h.await("the new one", func() bool { return slices.Equal(h.ids(), []string{"a"}) })
	h.fileAtStart("a.yaml", "id: a\nplugin_id: rec\nexternal_id: ext/a\nreclaim: delete\n")
	hup()
	h.await("the change", func() bool {
		return h.volctl("volume", "status", "a", "-o", "go-template={{.spec.reclaim}}") == "delete"
	})
	h.fileAtStart("a.yaml", "id: a\nplugin_id: rec\nexternal_id: ext/b\nreclaim: delete\n")
	hup()
	h.await("the refusal", func() bool {
		return strings.Contains(h.problem(file), `cannot change external_id of volume "a" from "ext/a" to "ext/b"`)
	})
	h.fileAtStart("b.yaml", "id: b\nplugin_id: rec\nexternal_id: ext/b2\n")
	hup()
	h.await("the one beside it", func() bool { return slices.Equal(h.ids(), []string{"a", "b"}) })
	said := func(words string) int {
		raw, err := os.ReadFile(h.log.Name())
		h.must(err)
		return strings.Count(string(raw), words)
	}
	if n := said("cannot apply a volume file"); n != 1 {
		t.Errorf("the refusal is logged %d times", n)
	}
	h.fileAtStart("a.yaml", "id: a\nplugin_id: rec\nexternal_id: ext/a\nreclaim: delete\n")
	hup()
	h.await("the problem is gone", func() bool { return h.problem(file) == "" })
	h.must(os.Remove(file))
	hup()
	h.await("it is said that it stays", func() bool { return said("the file of a volume is gone; the volume stays registered: volume=a") == 1 })
	if got := h.ids(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("volumes are %q", got)
	}
	h.volctl("volume", "deregister", "a")
	h.volctl("volume", "deregister", "b")
}

// TestVolumeFilesPluginLate checks a volume file whose plugin is not ready yet. The agent registers
// the volume when the plugin becomes ready, and a claim waits for this registration.
func TestVolumeFilesPluginLate(t *testing.T) {
	t.Parallel()
	h := prepared(t, "10s", nil)
	late := filepath.Join(h.dir, "plugins.d", "rec.yaml")
	aside := filepath.Join(h.dir, "rec.yaml")
	h.must(os.Rename(late, aside))
	h.must(os.WriteFile(late, []byte("id: rec\nsocket: "+h.dir+"/none.sock\n"), 0o644))
	file := h.fileAtStart("a.yaml", "id: a\nplugin_id: rec\nexternal_id: ext/a\n")
	h.start("local")
	if r := h.exits(6, `waits for plugin "rec"`, "volume", "claim", "a", "--no-wait"); !strings.Contains(r.err, file+":1") {
		t.Errorf("it is not said where: %s", r.err)
	}
	h.exits(6, `waits for plugin "rec"`, "volume", "claim", "a", "--timeout", "100ms")
	h.exits(3, `no volume "other"`, "volume", "claim", "other")
	done := h.background("volume", "claim", "a", "--timeout", "90s")
	h.must(os.Rename(aside, late))
	if r := <-done; r.code != 0 {
		t.Errorf("the claim ended with %d: %s", r.code, r.err)
	}
	if got := h.problem(file); got != "" {
		t.Errorf("a problem still: %s", got)
	}
	h.volctl("volume", "detach", "a")
}
