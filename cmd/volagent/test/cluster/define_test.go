package cluster_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/cluster/etcdtest"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// volumeFileIn writes a volume file, and returns its path.
func volumeFileIn(h *harness.Host, name, text string) string {
	file := filepath.Join(h.Dir, name)
	h.Must(os.WriteFile(file, []byte(text), 0o600))
	return file
}

// provisioning lets a plugin create, expand and modify volumes.
func provisioning(c *csitest.Config) {
	c.CreateDelete, c.Expand, c.NodeExpand, c.Modify, c.Snapshot, c.ListSnapshots = true, true, true, true, true, true
}

// mustSay fails the test unless a text contains all words.
func mustSay(t *testing.T, what, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%s does not say %q:\n%s", what, w, text)
		}
	}
}

// TestRegisterShared registers and changes the definition of a volume on several hosts.
func TestRegisterShared(t *testing.T) {
	etcd := etcdtest.Start(t, 1)
	a, b := startHost(t, "a", etcd, provisioning), startHost(t, "b", etcd, provisioning)
	a.Volctl("volume", "register", volumeFileIn(a, "db.yaml", volumeFile))

	// The other host sees the volume at once.
	mustSay(t, "export on b", b.Volctl("volume", "export", "db"), "scope: shared", "external_id: disk-1")
	mustSay(t, "the same file on b", b.Volctl("volume", "register", volumeFileIn(b, "db.yaml", volumeFile)), "unchanged")

	changed := volumeFile + "mount_options: {mount_flags: [noatime]}\n"
	mustSay(t, "another file on b", b.Volctl("volume", "register", volumeFileIn(b, "db2.yaml", changed)), "mount_options")
	mustSay(t, "export on a", a.Volctl("volume", "export", "db"), "noatime")

	// While any host uses the volume, the rules for a volume in use apply on all hosts.
	a.Volctl("volume", "claim", "db", "--alloc", "web")
	b.ExpectRefusal(4, "they can change only while the volume is free", "volume", "register", volumeFileIn(b, "db.yaml", volumeFile))
	a.ExpectRefusal(4, "they can change only while the volume is free", "volume", "register", volumeFileIn(a, "db.yaml", volumeFile))
	b.ExpectRefusal(4, `held by host a`, "volume", "deregister", "db", "-y")
	b.Volctl("volume", "register", volumeFileIn(b, "db2.yaml", changed+"reclaim: delete\n"))
	a.Await("the record of the user has the change", func() bool { return strings.Contains(a.Volctl("volume", "export", "db"), "reclaim: delete") })

	// A file with another scope, and the same storage under another id.
	own := strings.Replace(volumeFile, "scope: shared\n", "", 1)
	b.ExpectRefusal(4, "is registered with scope shared", "volume", "register", volumeFileIn(b, "own.yaml", own))
	b.ExpectRefusal(4, `registered in the cluster as shared volume "db"`, "volume", "register", volumeFileIn(b, "own.yaml", strings.Replace(own, "id: db", "id: mine", 1)))
	b.Volctl("volume", "register", volumeFileIn(b, "own.yaml", "id: mine\nplugin_id: san\nexternal_id: disk-2\n"))
	b.ExpectRefusal(4, "is registered with scope host", "volume", "register", volumeFileIn(b, "own.yaml", "id: mine\nplugin_id: san\nexternal_id: disk-2\nscope: shared\n"))

	a.Volctl("volume", "detach", "db", "web")
	b.Volctl("volume", "deregister", "db", "-y")
	a.ExpectRefusal(3, "no volume", "volume", "export", "db")
}

// TestCreateShared creates, expands, modifies, snapshots and deletes a volume from several hosts.
func TestCreateShared(t *testing.T) {
	etcd := etcdtest.Start(t, 1)
	a, b := startHost(t, "a", etcd, provisioning), startHost(t, "b", etcd, provisioning)
	file := "id: db\nplugin_id: san\nscope: shared\ncapacity_min: 1GiB\n"
	a.Volctl("volume", "create", volumeFileIn(a, "db.yaml", file))
	mustSay(t, "the same create on b", b.Volctl("volume", "create", volumeFileIn(b, "db.yaml", file)), "db")

	export := b.Volctl("volume", "export", "db")
	name := ""
	for line := range strings.Lines(export) {
		if v, ok := strings.CutPrefix(line, "name: "); ok {
			name = strings.TrimSpace(v)
		}
	}
	if parts := strings.Split(name, "-"); len(parts) != 3 || parts[1] != "db" {
		t.Errorf("the name at the plugin is %q", name)
	}

	a.Volctl("volume", "claim", "db", "--alloc", "web")
	b.ExpectRefusal(4, "held by host a", "volume", "delete", "db", "-y")
	mark := len(journal(a))
	mustSay(t, "expand on b", b.Volctl("volume", "expand", "db", "2GiB"), "2GiB")
	a.Await("the holder expands its file system", func() bool { return strings.Contains(strings.Join(journal(a)[mark:], " "), csitest.NodeExpand) })
	for _, call := range journal(a)[mark:] {
		if call == csitest.ControllerExpand {
			t.Error("the holder has called the controller again")
		}
	}
	mustSay(t, "status on a", a.Volctl("volume", "status", "db", "-o", "json"), `"capacity": 2147483648`)

	mustSay(t, "modify on b", b.Volctl("volume", "modify", "db", "iops=7"), "iops")
	mustSay(t, "modify again on a", a.Volctl("volume", "modify", "db", "iops=7"), "unchanged")
	a.Volctl("volume", "snapshot", "create", "db", "s1")
	restored := "id: copy\nplugin_id: san\nscope: shared\nsnapshot_id: s1\n"
	a.Volctl("volume", "create", volumeFileIn(a, "copy.yaml", restored))
	mustSay(t, "export of the restored volume on b", b.Volctl("volume", "export", "copy"), "scope: shared", "-copy-")
	b.Volctl("volume", "delete", "copy", "-y")

	a.Volctl("volume", "detach", "db", "web")
	b.Volctl("volume", "delete", "db", "-y")
	a.ExpectRefusal(3, "no volume", "volume", "export", "db")
}

// journal returns the methods of the calls that the plugin of a host has received.
func journal(h *harness.Host) (methods []string) {
	calls, err := csitest.ReadJournal(csitest.Config{Base: filepath.Join(h.Dir, "p")}.JournalPath())
	h.Must(err)
	for _, c := range calls {
		methods = append(methods, c.Method)
	}
	return methods
}

// short restarts the agent of a host with a plugin whose calls end after two seconds.
func short(h *harness.Host) {
	h.Kill()
	file := filepath.Join(h.Dir, "plugins.d", "san.yaml")
	text, err := os.ReadFile(file)
	h.Must(err)
	h.Must(os.WriteFile(file, []byte(strings.TrimSuffix(strings.TrimSpace(string(text)), "}")+`, "timeouts": {"controller": "2s", "node": "2s"}}`), 0o600))
	h.Start("san")
}

// TestCreateSharedCrash continues a create on another host after the agent that has begun it crashed.
// The call is repeated with the same name, so it makes no second storage volume.
func TestCreateSharedCrash(t *testing.T) {
	etcd := etcdtest.Start(t, 1)
	a, b := startHost(t, "a", etcd, provisioning), startHost(t, "b", etcd, provisioning)
	short(a)
	short(b)

	_, err := csitest.Config{Base: filepath.Join(a.Dir, "p")}.Faults().Add(csitest.Fault{Method: csitest.CreateVolume, KillCaller: csitest.AfterEffect})
	a.Must(err)
	file := "id: db\nplugin_id: san\nscope: shared\ncapacity_min: 1GiB\n"
	if r := a.Try("volume", "create", volumeFileIn(a, "db.yaml", file)); r.Code == 0 {
		t.Fatalf("the create has succeeded: %s", r.Out)
	}

	made := names(a)
	b.ExpectRefusal(4, "creating did not end", "volume", "claim", "db", "--alloc", "web", "--timeout", "5s")
	b.ExpectRefusal(4, `host "a" is calling CreateVolume`, "volume", "create", volumeFileIn(b, "db.yaml", file))
	a.Start("san")
	b.Await("the other host may continue", func() bool {
		r := b.Try("volume", "create", filepath.Join(b.Dir, "db.yaml"))
		if r.Code != 0 {
			mustSay(t, "the refusal", r.Err, `host "a"`)
		}
		return r.Code == 0
	})
	if again := names(b); len(made) != 1 || len(again) != 1 || made[0] != again[0] {
		t.Errorf("the names of the creates are %q on a, and %q on b", made, again)
	}
	mustSay(t, "the same create on a", a.Volctl("volume", "create", filepath.Join(a.Dir, "db.yaml")), "db")
	a.Volctl("volume", "delete", "db", "-y")
}

// names returns the names of all volumes that a host has asked its plugin to create.
func names(h *harness.Host) (all []string) {
	calls, err := csitest.ReadJournal(csitest.Config{Base: filepath.Join(h.Dir, "p")}.JournalPath())
	h.Must(err)
	for _, c := range calls.Only(csitest.CreateVolume) {
		all = append(all, c.Name)
	}
	return all
}

// TestDeregisterSharedByForce makes a host forget a volume that it cannot take down. The hold stays
// until the leftovers are undone.
func TestDeregisterSharedByForce(t *testing.T) {
	etcd := etcdtest.Start(t, 1)
	a, b := startHost(t, "a", etcd, nil), startHost(t, "b", etcd, nil)
	short(a)
	a.Volctl("volume", "register", volumeFileIn(a, "db.yaml", volumeFile))
	a.Volctl("volume", "claim", "db", "--alloc", "web")

	control := csitest.Config{Base: filepath.Join(a.Dir, "p")}.Faults()
	_, err := control.Add(csitest.Fault{Method: csitest.NodeUnpublish, Times: -1, Code: codes.Internal})
	a.Must(err)
	a.Try("volume", "detach", "db", "web", "--timeout", "1s")
	b.ExpectRefusal(4, "held by host a", "volume", "deregister", "db", "--force", "-y")
	a.ExpectRefusal(4, "cannot discard its leftovers", "volume", "deregister", "db", "--force", "--forget", "-y")
	mustSay(t, "deregister by force", a.Volctl("volume", "deregister", "db", "--force", "-y"), "stays in the cluster")
	b.ExpectRefusal(5, `held by host "a"`, "volume", "claim", "db", "--alloc", "web", "--timeout", "1s")
	a.ExpectRefusal(4, "cannot discard its leftovers", "volume", "deregister", "db", "--force", "--forget", "-y")

	// The agent explains the hold by the leftover record also after a restart.
	a.Kill()
	a.Start("san")
	b.ExpectRefusal(5, `held by host "a"`, "volume", "claim", "db", "--alloc", "web", "--timeout", "1s")
	a.Must(control.Clear())
	b.Volctl("volume", "claim", "db", "--alloc", "web", "--timeout", "30s")
	b.Volctl("volume", "detach", "db", "web")
	b.Volctl("volume", "deregister", "db", "-y")
}
