package bundled_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/etcd/wire"
	"github.com/volagent/volagent/agent/machine"
	"github.com/volagent/volagent/volmgr/shared"
)

// TestRestore checks that a restore brings back the data of a backup, in a new epoch and with a
// greater revision, and suspends the cluster until a person resumes it.
func TestRestore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.first()
	r.join(2)
	r.votes([]int{1}, []int{2})

	c := r.store(1)
	put := func(id string) int64 { return r.do(c, shared.Put(shared.VolumeKey(id), []byte("{}"))) }
	put("old")
	file := filepath.Join(r.dir, "backup")
	r.must(1, "", "backup", file)
	r.refused(1, 4, "the file exists", "", "backup", file)
	r.must(1, "", "backup", file, "--force")
	newest := put("new")

	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	damaged := filepath.Join(r.dir, "damaged")
	raw[len(raw)/2] ^= 1
	if err := os.WriteFile(damaged, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(damaged+"2", raw[:len(raw)-100], 0o600); err != nil {
		t.Fatal(err)
	}
	r.refused(1, 2, "is damaged", "", "restore", damaged)
	r.refused(1, 2, "not a complete backup", "", "restore", damaged+"2")
	r.refusedRestores(file)
	r.kill(1)

	stale := filepath.Join(r.data(1), "etcd.restoring-1") // of a command that was killed
	if err := errors.Join(os.Mkdir(stale, 0o700), os.WriteFile(filepath.Join(stale, "db"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	r.must(1, "", "restore", file)
	if slices.ContainsFunc(r.entries(), func(name string) bool { return strings.HasPrefix(name, "etcd.restoring-") }) {
		t.Errorf("the restore has left its own data or that of an earlier one: %v", r.entries())
	}
	r.kill(2)
	r.start(1)
	r.wait("the restored cluster has no leader", func(st wire.ClusterStatus) bool { return st.Quorum })
	st := r.status(1)
	if time.Since(time.Unix(st.Epoch, 0)) > 10*time.Minute || !strings.HasPrefix(st.Suspended, "restored at ") || len(st.Problems) == 0 {
		t.Errorf("after the restore: %+v", st)
	}
	r.problem(1, "single-writer volumes are suspended", "volctl cluster resume")

	c = r.store(1)
	got, err := c.Range(t.Context(), shared.Volumes(), 0, 0)
	if err != nil || len(got.KVs) != 1 || got.KVs[0].Key != shared.VolumeKey("old") || got.Revision < newest+1_000_000 {
		t.Errorf("after the restore: %+v, %v", got, err)
	}
	if _, err := c.Range(t.Context(), shared.Volumes(), 0, newest); !errors.Is(err, shared.ErrCompacted) {
		t.Errorf("the revisions before the restore are not compacted: %v", err)
	}

	r.must(1, "", "resume")
	r.refused(1, 4, "not suspended", "", "resume")
	page, err := c.Range(t.Context(), shared.Span{Key: shared.MetaKey}, 0, 0)
	if err != nil || len(page.KVs) != 1 {
		t.Fatalf("%+v, %v", page, err)
	}
	var m shared.Meta
	if err := json.Unmarshal(page.KVs[0].Value, &m); err != nil || m.Suspended != "" || m.EpochTail == "" || m.ClusterID != st.ClusterID {
		t.Errorf("after the resume: %s, %v", page.KVs[0].Value, err)
	}
	r.must(1, "", "restored")
	if after := r.status(1); after.Epoch <= st.Epoch || after.Suspended == "" {
		t.Errorf("after restored: %+v", after)
	}
	r.must(1, "", "resume")

	r.must(2, "", "leave", "--forget")
	r.must(1, "", "remove", "h2")
	r.join(2)
	r.votes([]int{1}, []int{2})
}

// refusedRestores checks that backups that are not of this cluster are refused before etcd of the
// first host is stopped, and that nothing of the attempts stays.
func (r *rig) refusedRestores(own string) {
	r.t.Helper()
	other := newRig(r.t)
	other.first()
	foreign := filepath.Join(r.dir, "foreign")
	other.must(1, "", "backup", foreign)
	other.kill(1)

	raw := bytes.Repeat([]byte("x"), 4096) // with a hash that fits, and yet no database
	sum := sha256.Sum256(raw)
	nonsense := filepath.Join(r.dir, "nonsense")
	if err := os.WriteFile(nonsense, append(raw, sum[:]...), 0o600); err != nil {
		r.t.Fatal(err)
	}

	before := r.entries()
	r.refused(1, 4, "the backup is of cluster", "", "restore", foreign)
	r.refused(1, 2, "contains no database", "", "restore", nonsense)
	r.refused(1, 2, "no such file", "", "restore", own+"-missing")
	r.must(1, "", "token") // etcd still runs
	if after := r.entries(); !slices.Equal(before, after) {
		r.t.Errorf("the refused restores have changed the files of the host:\n%v\n%v", before, after)
	}
}

// entries returns the names in the data directory of the first host.
func (r *rig) entries() (names []string) {
	r.t.Helper()
	all, err := os.ReadDir(r.data(1))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}

// TestFull checks that a full etcd is reported with the command that helps, and that the command
// helps.
func TestFull(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.first("--quota", "16MiB")
	c := r.store(1)
	full := false
	for range 100 {
		_, err := c.Do(t.Context(), shared.Txn{Then: []shared.Op{shared.Put("fill", bytes.Repeat([]byte("x"), 1<<20))}})
		if full = errors.Is(err, shared.ErrFull); full {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if !full {
		t.Fatal("etcd is not full")
	}
	r.problem(1, "etcd is full", "volctl cluster compact")
	res := r.try(1, "", "token")
	if res.Code != 4 || !strings.Contains(res.Err, "etcd is full") || !strings.Contains(res.Err, "hint: volctl cluster compact") {
		t.Errorf("a token of a full cluster: %+v", res)
	}

	r.must(1, "", "compact")
	for _, p := range r.status(1).Problems {
		if strings.Contains(p.Text, "full") {
			t.Errorf("after compact: %+v", p)
		}
	}
	r.must(1, "", "token")
}

// TestHolds checks that a host with holds cannot leave and is not removed, also if its agent has another
// node id than the name of the host.
func TestHolds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.first()
	r.join(2, "--client")
	c := r.store(1)
	check := func(key, words string) {
		t.Helper()
		r.do(c, shared.Put(key, []byte("{}")))
		r.refused(1, 4, words, "", "remove", "h2")
		r.refused(2, 4, words, "", "leave")
		r.do(c, shared.Delete(key))
	}

	check(shared.HoldKey("h2", "db"), `host "h2" holds shared volumes (db)`)
	self := machine.Identity()
	if self.ID == "" {
		t.Log("this machine has no machine id, so the test cannot register an agent of it")
	} else {
		node, err := json.Marshal(shared.Node{Machine: self, State: shared.NodeReady})
		if err != nil {
			t.Fatal(err)
		}
		r.do(c, shared.Put(shared.NodeKey("agent-2"), node))
		check(shared.HoldKey("agent-2", "db"), `host "h2", whose agent has the node id "agent-2", holds shared volumes (db)`)
	}

	r.must(2, "", "leave")
	if st := r.status(1); len(st.Hosts) != 1 {
		t.Errorf("after the leave: %+v", st.Hosts)
	}
	r.refused(1, 3, "has no host", "", "remove", "h2")
}

// TestUpgrade checks the raise of the schema, and that nothing is upgraded while a member is away.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.first()
	if out := r.must(1, "", "upgrade"); !strings.Contains(out, "all members run etcd 3.7") || !strings.Contains(out, "the cluster has schema 1") {
		t.Errorf("upgrade: %s", out)
	}
	r.join(2)
	r.votes([]int{1}, []int{2})
	r.kill(2)
	r.wait("the dead member looks healthy", func(st wire.ClusterStatus) bool { return !st.Hosts[1].Healthy })
	r.refused(1, 4, `member "h2" is not healthy`, "", "upgrade")
}
