package cluster_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/cluster/etcdtest"
	"github.com/volagent/volagent/volmgr/csitest/san"
)

// TestExpandHolders expands a volume that two hosts use, from a third host. Each holder makes its own
// NodeExpandVolume, also the one whose agent does not run at the time.
func TestExpandHolders(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 3, san.Config{Attach: true, Stage: true, Expand: true})
	a, b, c := r.hosts[0], r.hosts[1], r.hosts[2]
	r.share("db", mode("multi-node-multi-writer"))
	claim(a, "db", "web")
	claim(b, "db", "web")

	c.Volctl("volume", "expand", "db", "2MiB")
	r.awaitSizes(2 << 20)

	b.Kill()
	c.Volctl("volume", "expand", "db", "3MiB")
	a.Await("the running holder learns the size", func() bool { return r.sizes()["h1"] == 3<<20 })
	if size := r.sizes()["h2"]; size != 2<<20 {
		t.Errorf("a host without an agent has expanded the volume to %d bytes", size)
	}
	b.Start("san")
	r.awaitSizes(3 << 20)

	a.Volctl("volume", "detach", "db", "web")
	b.Volctl("volume", "detach", "db", "web")
	r.awaitGone()
}

// sizes returns the size of a volume in bytes that each host has mounted.
func (r *rig) sizes() map[string]int64 {
	sizes := map[string]int64{}
	for _, s := range r.san.Sessions() {
		sizes[s.Node] = s.Size
	}
	return sizes
}

// awaitSizes waits until two hosts have mounted a volume that has the given size in bytes.
func (r *rig) awaitSizes(want int64) {
	r.t.Helper()
	r.hosts[0].Await("the size on both holders", func() bool {
		sizes := r.sizes()
		return sizes["h1"] == want && sizes["h2"] == want
	})
}

// TestPluginScope registers volumes of a plugin whose file has a scope. A volume file can have another
// one.
func TestPluginScope(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t, 1)
	a, b := startHost(t, "a", etcd, nil), startHost(t, "b", etcd, nil)
	file := filepath.Join(a.Dir, "plugins.d", "san.yaml")
	text, err := os.ReadFile(file)
	a.Must(err)
	scoped := func(scope string) {
		a.Kill()
		a.Must(os.WriteFile(file, []byte(strings.TrimSuffix(strings.TrimSpace(string(text)), "}")+`, "scope": "`+scope+`"}`), 0o600))
		a.Start("san")
	}

	scoped("shared")
	a.Volctl("volume", "register", volumeFileIn(a, "db.yaml", ownFile))
	mustSay(t, "export on b", b.Volctl("volume", "export", "db"), "scope: shared")
	a.Volctl("volume", "register", volumeFileIn(a, "own.yaml", "id: own\nplugin_id: san\nexternal_id: disk-2\nscope: host\n"))
	b.ExpectRefusal(3, "no volume", "volume", "export", "own")

	// The file of a volume that exists may still have no scope.
	mustSay(t, "the same file again", a.Volctl("volume", "register", volumeFileIn(a, "db.yaml", ownFile)), "unchanged")

	scoped("host")
	a.ExpectRefusal(4, `plugin "san" has scope: host`, "volume", "register", volumeFileIn(a, "more.yaml", "id: more\nplugin_id: san\nexternal_id: disk-3\nscope: shared\n"))
	a.ExpectRefusal(4, `plugin "san" has scope: host`, "volume", "share", "own")
}
