package cluster_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/csitest/san"
)

// TestModes claims a volume on three hosts in each access mode. Only the permitted hosts get it, and
// a refusal names the host that has it. (I1)
func TestModes(t *testing.T) {
	for _, driver := range []struct {
		name string
		san  san.Config
	}{
		{"attach and stage", san.Config{Attach: true, Stage: true}},
		{"attach", san.Config{Attach: true}},
		{"node only", san.Config{NodeOnly: true, Stage: true}},
	} {
		t.Run(driver.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1, 3, driver.san)
			a, b, c := r.hosts[0], r.hosts[1], r.hosts[2]

			r.share("one", mode("single-node-writer"))
			path := claim(a, "one", "web")
			a.Must(write(a, path, "greeting", "from h1"))
			waited := b.Try("volume", "claim", "one", "--alloc", "web", "--timeout", "2s").Err
			refused(t, waited, `held by host "h1"`)
			refused(t, waited, "hint: volctl volume status one")
			a.Volctl("volume", "detach", "one", "web")
			path = claim(b, "one", "web")
			if text := read(b, path, "greeting"); text != "from h1" {
				t.Errorf("the moved volume contains %q", text)
			}
			b.Volctl("volume", "detach", "one", "web")

			r.share("many", mode("multi-node-multi-writer"))
			for _, h := range r.hosts {
				path := claim(h, "many", "web")
				h.Must(write(h, path, "f", "x"))
			}
			for _, h := range r.hosts {
				h.Volctl("volume", "detach", "many", "web")
			}

			r.share("mixed", mode("multi-node-single-writer"))
			claim(a, "mixed", "reader", "--read-only")
			claim(b, "mixed", "reader", "--read-only")
			path = claim(c, "mixed", "writer")
			c.Must(write(c, path, "f", "x"))
			refused(t, b.Try("volume", "claim", "mixed", "--alloc", "writer", "--timeout", "2s").Err, "this host holds volume \"mixed\" as a reader")
			b.Volctl("volume", "detach", "mixed", "reader")
			refused(t, b.Try("volume", "claim", "mixed", "--alloc", "writer", "--timeout", "2s").Err, `held by host "h3"`)
			c.Volctl("volume", "detach", "mixed", "writer")
			claim(b, "mixed", "writer")
			b.Volctl("volume", "detach", "mixed", "writer")
			a.Volctl("volume", "detach", "mixed", "reader")

			r.share("readers", mode("multi-node-reader-only"))
			for _, h := range r.hosts {
				claim(h, "readers", "web", "--read-only")
			}
			for _, h := range r.hosts {
				h.Volctl("volume", "detach", "readers", "web")
			}
			r.awaitGone()
		})
	}
}

// TestOperations checks the operations on a shared volume that change its definition or its storage.
// A volume in use is neither deleted nor deregistered, and a free one is gone on all hosts.
func TestOperations(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, san.Config{Attach: true, Stage: true, Provision: true, Expand: true, Snapshots: true})
	a, b := r.hosts[0], r.hosts[1]
	r.share("db")
	path := claim(a, "db", "web")
	again := filepath.Join(a.Dir, "db.yaml")
	a.ExpectOutput("unchanged", "volume", "register", again)
	b.Must(os.WriteFile(filepath.Join(b.Dir, "db.yaml"), []byte("id: db\nplugin_id: san\nexternal_id: disk-db\nscope: shared\nreclaim: delete\n"), 0o600))
	made := filepath.Join(b.Dir, "new.yaml")
	b.Must(os.WriteFile(made, []byte("id: new\nplugin_id: san\ncapacity_min: 1MiB\nscope: shared\n"), 0o600))
	other := filepath.Join(b.Dir, "other.yaml")
	b.Must(os.WriteFile(other, []byte("id: other\nplugin_id: san\nexternal_id: disk-db\nscope: shared\n"), 0o600))

	a.Volctl("volume", "expand", "db", "2MiB")
	a.ExpectRefusal(4, "cannot modify volumes", "volume", "modify", "db", "x=y")
	a.ExpectRefusal(4, "held by host h1", "volume", "delete", "db", "-y", "--confirm=db")
	a.Volctl("volume", "snapshot", "create", "db", "s")
	b.Volctl("volume", "register", filepath.Join(b.Dir, "db.yaml"))
	b.Volctl("volume", "create", made)
	b.ExpectRefusal(4, `already registered in the cluster as volume "db"`, "volume", "register", other)
	a.ExpectRefusal(4, "claimed by", "volume", "deregister", "db")
	b.ExpectRefusal(4, `held by host h1`, "volume", "deregister", "db")
	a.Must(write(a, path, "f", "x"))

	a.Volctl("volume", "detach", "db", "web")
	b.Volctl("volume", "deregister", "db")
	for _, h := range r.hosts {
		h.ExpectRefusal(3, `"db"`, "volume", "claim", "db", "--alloc", "web")
	}
	b.Volctl("volume", "delete", "new", "-y")
	for _, kv := range r.keys() {
		if strings.Contains(kv.Key, "db") || strings.HasPrefix(kv.Key, "external/") {
			t.Errorf("etcd still has %s", kv.Key)
		}
	}
}

// TestForeignSecrets shares a volume whose definition names a file of the hosts. A host refuses a
// file that its configuration does not list, so a definition cannot read the files of other hosts.
func TestForeignSecrets(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, san.Config{Stage: true})
	a, b := r.hosts[0], r.hosts[1]
	secret := filepath.Join(a.Dir, "secret")
	a.Must(os.WriteFile(secret, []byte("x"), 0o600))
	a.Kill()
	allowing := strings.Replace(r.section(), "cluster: {", "cluster: {secrets: {files: ["+secret+"]}, ", 1)
	a.Must(os.WriteFile(filepath.Join(a.Dir, "volagent.yaml"), []byte(allowing), 0o600))
	a.Start("san")
	r.share("db", "secrets: {key: {file: "+secret+"}}")
	claim(a, "db", "web")
	a.Volctl("volume", "detach", "db", "web")
	b.ExpectRefusal(4, "may not use file", "volume", "claim", "db", "--alloc", "web", "--timeout", "5s")
	b.ExpectNoMounts()
}

// refused checks that the text of a refusal contains some words.
func refused(t *testing.T, text, words string) {
	t.Helper()
	if !strings.Contains(text, words) {
		t.Errorf("the refusal does not say %q: %s", words, text)
	}
}
