package cluster_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/csitest/san"
)

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
