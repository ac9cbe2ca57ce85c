package cluster_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/cluster/etcdtest"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestRestore restores etcd from an older backup while two hosts use volumes. The agents report
// the restore, and name the command. The cluster admits no writer until a person runs that command and
// then resumes the cluster. The hosts write their holds anew, also for a volume that the backup does
// not know. All mounts stay usable all the time. The tokens of each volume only grow. (I1, I3, I7)
func TestRestore(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, san.Config{Attach: true, Stage: true})
	a, b := r.hosts[0], r.hosts[1]
	r.share("db", mode("single-node-multi-writer"))
	r.share("moved")
	r.share("free")
	r.share("many", mode("multi-node-multi-writer"))
	mounts := &mounts{}
	mounts.add(b, claim(b, "many", "web"))
	claim(a, "moved", "web")
	r.tokens(t, "moved")
	saved := r.etcd.Save(0)

	// None of this is in the backup.
	a.Volctl("volume", "detach", "moved", "web")
	mounts.add(b, claim(b, "moved", "web"))
	mounts.add(a, claim(a, "db", "web"))
	r.share("later")
	mounts.add(a, claim(a, "later", "web"))
	before := map[string]volume.Token{}
	for _, id := range []string{"db", "moved", "later", "many"} {
		before[id] = r.tokens(t, id)
	}

	r.etcd.Restore(0, saved)
	for _, h := range r.hosts {
		h.Await("the agent says that etcd went back", func() bool {
			return strings.Contains(h.Volctl("node", "status"), "volctl cluster restored")
		})
	}
	mounts.check()
	b.ExpectRefusal(6, "volctl cluster restored", "volume", "claim", "db", "--alloc", "x", "--timeout", "2s")
	refusedCluster(a, "gone back", "resume")
	a.Volctl("volume", "claim", "db", "--alloc", "second")

	b.Kill()
	clusterCommand(a, "restored")
	a.Await("host h1 in the new epoch", func() bool { return r.has(shared.HoldKey("h1", "later")) })
	refusedCluster(a, "h2", "resume")
	a.ExpectRefusal(5, "volctl cluster resume", "volume", "claim", "free", "--alloc", "web", "--timeout", "2s")
	claim(a, "many", "web")

	b.Start("san")
	b.Await("host h2 in the new epoch", func() bool { return r.has(shared.HoldKey("h2", "moved")) })
	b.ExpectRefusal(5, `held by host "h1"`, "volume", "claim", "later", "--alloc", "x", "--timeout", "2s")
	b.ExpectOutput("h1", "volume", "status", "moved") // the hold of the backup waits for the command
	mounts.check()
	clusterCommand(a, "resume")
	a.Await("the end of the hold that nobody uses", func() bool { return !r.has(shared.HoldKey("h1", "moved")) })
	mounts.check()
	for id, was := range before {
		if now := r.tokens(t, id); !was.Before(now) {
			t.Errorf("the token of %q was %v, and is %v after the restore", id, was, now)
		}
	}

	claim(a, "free", "web")
	a.Volctl("volume", "detach", "free", "web")
	for _, alloc := range []string{"web", "second"} {
		a.Volctl("volume", "detach", "db", alloc)
	}
	a.Volctl("volume", "detach", "later", "web")
	claim(b, "later", "web")
	claim(b, "db", "web")
	b.Volctl("volume", "detach", "moved", "web")
	claim(a, "moved", "web")
	for _, id := range []string{"db", "later", "many"} {
		b.Volctl("volume", "detach", id, "web")
	}
	for _, id := range []string{"moved", "many"} {
		a.Volctl("volume", "detach", id, "web")
	}
	r.awaitGone()
	for _, id := range []string{"db", "later", "moved", "many", "free"} {
		r.expectFree(id)
	}
}

// TestRestoreConflict restores etcd so that it forgets a hold, and lets a second host use the volume.
// Both hosts keep their mounts. Each screen and each refusal names both hosts. The volume is free for
// a third host when a person has detached it on both.
func TestRestoreConflict(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t, 1)
	hosts := map[string]*harness.Host{}
	for _, name := range []string{"a", "b", "c"} {
		hosts[name] = startHost(t, name, etcd, noAttachment)
	}
	a, b, c := hosts["a"], hosts["b"], hosts["c"]
	registerShared(a)
	b.Kill()
	c.Kill()
	saved := etcd.Save(0)
	mounts := &mounts{}
	mounts.add(a, claim(a, "db", "web"))
	a.Kill()
	etcd.Restore(0, saved)

	b.Start("san") // it has not seen the hold of host a
	mounts.add(b, claim(b, "db", "web", "--timeout", "60s"))
	a.Start("san")
	c.Start("san")
	a.Await("the agent says that etcd went back", func() bool {
		return strings.Contains(a.Volctl("node", "status"), "volctl cluster restored")
	})
	c.ExpectRefusal(5, `held by host "b"`, "volume", "claim", "db", "--alloc", "web", "--timeout", "1s")
	clusterCommand(c, "restored")
	a.Await("the conflict", func() bool { return strings.Contains(a.Volctl("events"), "hold-conflict") })
	b.Await("both hosts in the status", func() bool { return len(statusOf(b).Holds) == 2 })
	c.Await("the conflict on host c", func() bool {
		r := c.Try("volume", "claim", "db", "--alloc", "web", "--timeout", "1s")
		return r.Code == 5 && strings.Contains(r.Err, `since etcd was restored: "a", "b"`)
	})
	a.Await("all hosts in the new epoch", func() bool { return tryCluster(a, "resume").Code == 0 })
	c.ExpectRefusal(5, `since etcd was restored: "a", "b"`, "volume", "claim", "db", "--alloc", "web", "--timeout", "1s")
	mounts.check()

	b.Volctl("volume", "detach", "db", "web")
	c.ExpectRefusal(5, `held by host "a"`, "volume", "claim", "db", "--alloc", "web", "--timeout", "1s")
	a.Volctl("volume", "detach", "db", "web")
	claim(c, "db", "web")
}

// mounts are mounts that must stay usable.
type mounts struct {
	hosts []*harness.Host
	paths []string
}

func (m *mounts) add(h *harness.Host, path string) {
	m.hosts, m.paths = append(m.hosts, h), append(m.paths, path)
	m.check()
}

// check writes and reads a file on each mount.
func (m *mounts) check() {
	for i, h := range m.hosts {
		h.T.Helper()
		h.Must(write(h, m.paths[i], "f", "alive"))
		if text := read(h, m.paths[i], "f"); text != "alive" {
			h.T.Errorf("the mount %s contains %q", m.paths[i], text)
		}
	}
}

// tryCluster runs a command of "volctl cluster" on a host that uses an etcd of its operator.
func tryCluster(h *harness.Host, args ...string) harness.Result {
	h.T.Helper()
	dirs := []string{"--config-dir", h.Dir, "--etcd-dir", filepath.Join(h.Dir, "etcd")}
	return h.Try(append(append([]string{"cluster"}, args...), dirs...)...)
}

// clusterCommand runs a command of "volctl cluster", which must succeed.
func clusterCommand(h *harness.Host, args ...string) {
	h.T.Helper()
	if r := tryCluster(h, args...); r.Code != 0 {
		h.T.Fatalf("volctl cluster %v: exit %d\n%s%s", args, r.Code, r.Out, r.Err)
	}
}

// refusedCluster runs a command of "volctl cluster", which must refuse with the given words.
func refusedCluster(h *harness.Host, words string, args ...string) {
	h.T.Helper()
	if r := tryCluster(h, args...); r.Code != 4 || !strings.Contains(r.Err, words) {
		h.T.Errorf("volctl cluster %v: exit %d, without %q:\n%s%s", args, r.Code, words, r.Out, r.Err)
	}
}

// has reports whether etcd has a key of the cluster.
func (r *rig) has(key string) bool {
	r.t.Helper()
	for _, kv := range r.keys() {
		if kv.Key == key {
			return true
		}
	}
	return false
}

// tokens returns the greatest token of a volume that etcd shows.
func (r *rig) tokens(t *testing.T, id string) (greatest volume.Token) {
	t.Helper()
	var meta shared.Meta
	keys := r.keys()
	for _, kv := range keys {
		if kv.Key == shared.MetaKey {
			if err := json.Unmarshal(kv.Value, &meta); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, kv := range keys {
		_, of, ok := shared.HoldIDs(kv.Key)
		token := volume.Token{Epoch: meta.Epoch, Revision: kv.Create}
		if ok && of == id && strings.HasPrefix(kv.Key, "holds/") && greatest.Before(token) {
			greatest = token
		}
	}
	if greatest.Revision == 0 {
		t.Errorf("etcd shows no hold on %q", id)
	}
	return greatest
}
