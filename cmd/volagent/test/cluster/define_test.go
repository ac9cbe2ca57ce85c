package cluster_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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
