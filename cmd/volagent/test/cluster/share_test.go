package cluster_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/cluster/etcdtest"
)

// ownFile is a volume of one host.
const ownFile = "id: db\nplugin_id: san\nexternal_id: disk-1\n"

// TestShare shares a mounted volume, and takes it back.
func TestShare(t *testing.T) {
	etcd := etcdtest.Start(t, 1)
	a, b := startHost(t, "a", etcd, nil), startHost(t, "b", etcd, nil)
	a.Volctl("volume", "register", volumeFileIn(a, "db.yaml", ownFile))
	path := a.Volctl("volume", "claim", "db", "--alloc", "web", "-q")
	b.ExpectRefusal(3, "no volume", "volume", "export", "db")

	// A host with the same storage, under any id, prevents the share.
	b.Volctl("volume", "register", volumeFileIn(b, "db.yaml", strings.Replace(ownFile, "id: db", "id: copy", 1)))
	a.ExpectRefusal(4, `host "b" uses the same external_id "disk-1"`, "volume", "share", "db")
	b.Volctl("volume", "deregister", "copy", "-y")

	mounts := a.Mounts()
	mustSay(t, "share", a.Volctl("volume", "share", "db"), `shared volume "db"`)
	mustSay(t, "share again", a.Volctl("volume", "share", "db"), "already")
	if now := a.Mounts(); now != mounts {
		t.Errorf("the mounts have changed:\n%s\nwere:\n%s", now, mounts)
	}
	b.ExpectRefusal(5, `held by host "a"`, "volume", "claim", "db", "--alloc", "web", "--timeout", "1s")
	b.ExpectRefusal(4, `host "a" uses volume "db"`, "volume", "unshare", "db")
	b.ExpectRefusal(4, `registered in the cluster as shared volume "db"`, "volume", "register", volumeFileIn(b, "db.yaml", strings.Replace(ownFile, "id: db", "id: copy", 1)))

	// The holder can take the volume back while it is mounted, and share it again.
	mustSay(t, "unshare", a.Volctl("volume", "unshare", "db"), `unshared volume "db"`)
	b.ExpectRefusal(3, "no volume", "volume", "export", "db")
	a.Volctl("volume", "share", "db")
	if now := a.Mounts(); now != mounts {
		t.Errorf("the mounts have changed:\n%s\nwere:\n%s", now, mounts)
	}
	if _, err := os.Stat(filepath.Join(path, ".")); err != nil {
		t.Error(err)
	}

	// Now the volume moves like any shared volume.
	a.Volctl("volume", "detach", "db", "web")
	b.Volctl("volume", "claim", "db", "--alloc", "web")
	b.Volctl("volume", "detach", "db", "web")
	b.Volctl("volume", "unshare", "db")
	mustSay(t, "export of the host that took the volume", b.Volctl("volume", "export", "db"), "external_id: disk-1")
	a.ExpectRefusal(3, "no volume", "volume", "export", "db")
}

// TestShareSilent shares a volume while a host does not answer.
func TestShareSilent(t *testing.T) {
	etcd := etcdtest.Start(t, 1)
	a, b := startHost(t, "a", etcd, nil), startHost(t, "b", etcd, nil)
	a.Volctl("volume", "register", volumeFileIn(a, "db.yaml", ownFile))
	b.Kill()
	a.ExpectRefusal(4, "host b has not answered", "volume", "share", "db")
	mustSay(t, "share by force", a.Volctl("volume", "share", "db", "--force"), `shared volume "db"`)
}

// TestHostScope refuses to share volumes that other hosts cannot use, and secrets that they cannot
// read.
func TestHostScope(t *testing.T) {
	etcd := etcdtest.Start(t, 1)
	a := startHost(t, "a", etcd, nil)
	a.Volctl("volume", "create", "local1", "--plugin", "local")
	a.ExpectRefusal(4, "has scope: host", "volume", "share", "local1")
	a.ExpectRefusal(4, "has scope: host", "volume", "create", volumeFileIn(a, "l.yaml", "id: l2\nplugin_id: local\nscope: shared\n"))

	a.ExpectRefusal(2, "sealed values are not shared", "volume", "register", volumeFileIn(a, "s.yaml", volumeFile+"secrets: {key: hunter2}\n"))
	secret := filepath.Join(a.Dir, "secret")
	a.Must(os.WriteFile(secret, []byte("hunter2"), 0o600))
	a.ExpectRefusal(4, "may not use file", "volume", "register", volumeFileIn(a, "s.yaml", volumeFile+"secrets: {key: {file: "+secret+"}}\n"))
	a.Volctl("volume", "register", volumeFileIn(a, "own.yaml", ownFile+"secrets: {key: hunter2}\n"))
	a.ExpectRefusal(2, "sealed values are not shared", "volume", "share", "db")
}
