package bundled_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/etcd/hostdir"
	"github.com/volagent/volagent/agent/etcd/token"
	"github.com/volagent/volagent/agent/etcd/wire"
)

// TestMembersGrow checks that a cluster has one, three and five voters, and that later hosts are
// clients. Then it replaces a dead member.
func TestMembersGrow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.first()
	r.refused(1, 4, "is in cluster", "", append([]string{"init"}, r.host(1)...)...)

	r.join(2)
	r.votes([]int{1}, []int{2})
	r.join(3)
	r.votes([]int{1, 2, 3}, nil)
	r.join(4)
	r.votes([]int{1, 2, 3}, []int{4})
	r.join(5, "--witness")
	r.votes([]int{1, 2, 3, 4, 5}, nil)
	if _, err := os.Stat(filepath.Join(r.config(5), "cluster.yaml")); err == nil {
		t.Error("a witness has a configuration of the agent")
	}

	r.refused(6, 4, "needs no witness", r.must(1, "", "token", "-q"), append([]string{"join", "--witness"}, r.host(6)...)...)
	r.join(6)
	if st := r.status(6); len(st.Hosts) != 6 || st.Hosts[5].Role != wire.RoleClient || st.Tolerates != 2 {
		t.Errorf("after the sixth host: %+v", st)
	}
	r.wait("the agent does not learn all members", func(wire.ClusterStatus) bool {
		raw, err := os.ReadFile(filepath.Join(r.config(1), "cluster.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(raw), fmt.Sprintf("https://%s.5:2379", r.net))
	})

	r.kill(3)
	r.wait("the dead member looks healthy", func(st wire.ClusterStatus) bool { return !st.Hosts[2].Healthy && st.Tolerates == 1 })
	r.problem(2, `member "h3" does not work`, "volctl cluster remove h3")
	r.must(2, "", "remove", "h3")
	r.start(3)
	if code := r.ended(3); code != 3 || !strings.Contains(r.log(3), "has left the cluster") {
		t.Errorf("the removed member ended with %d\n%s", code, r.log(3))
	}
	r.must(3, "", "leave", "--forget")
	r.join(3)
	r.votes([]int{1, 2, 3, 4, 5}, nil)
}

// TestJoinTogether checks that hosts may join at the same time. A host then starts with a list of
// members that is too short.
func TestJoinTogether(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.first()
	for _, n := range []int{2, 3} {
		r.must(n, r.must(1, "", "token", "-q"), append([]string{"join"}, r.host(n)...)...)
	}
	r.start(2)
	r.start(3)
	r.votes([]int{1, 2, 3}, nil)
	if !strings.Contains(r.log(2), "reads them again") {
		t.Errorf("host 2 has started with the right list of members, so this test shows nothing:\n%s", r.log(2))
	}
}

// TestTokens checks that only a token that is right, new and unused lets a host join, and that its
// secret is nowhere on disk.
func TestTokens(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.first()
	join := func(n int, text string) []string {
		return append([]string{"join", "--client", text}, r.host(n)...)
	}

	used := r.must(1, "", "token", "-q")
	r.refused(2, 8, "expired", "", join(2, r.must(1, "", "token", "-q", "--expires", "1ms"))...)
	r.refused(2, 2, "incomplete or damaged", "", join(2, used[:len(used)-9])...)
	r.refused(2, 2, "not a join token", "hello\n", append([]string{"join"}, r.host(2)...)...)
	bad, err := token.Parse(used)
	if err != nil {
		t.Fatal(err)
	}
	wrong := bad
	wrong.Secret = strings.Repeat("A", len(bad.Secret))
	r.refused(2, 8, "does not know this join token", "", join(2, wrong.String())...)
	other := bad
	other.Fingerprint = strings.Repeat("0", len(bad.Fingerprint))
	r.refused(2, 6, "belongs to another cluster", "", join(2, other.String())...)

	r.must(2, used, append([]string{"join", "--client"}, r.host(2)...)...)
	r.refused(3, 8, `used already, by host "h2"`, "", join(3, used)...)
	r.refused(3, 4, `has a member "h1" already`, "", "join", "--client", r.must(1, "", "token", "-q"), "--name", "h1", "--address", r.net+".3", "--no-start")

	err = filepath.WalkDir(r.dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if strings.Contains(string(raw), bad.Secret) {
			t.Errorf("%s contains the secret of a token", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestQuorum checks that no command costs the cluster its quorum, and that the commands report the
// problem while a majority is away.
func TestQuorum(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.first()
	r.refused(1, 4, "would lose its quorum", "", "leave")
	r.join(2)
	r.join(3)
	r.votes([]int{1, 2, 3}, nil)
	tok := r.must(1, "", "token", "-q")

	r.kill(3)
	r.wait("the dead member looks healthy", func(st wire.ClusterStatus) bool { return st.Tolerates == 0 })
	r.refused(1, 4, `without "h1" the cluster would lose its quorum`, "", "leave")
	r.refused(1, 4, `without "h2" the cluster would lose its quorum`, "", "remove", "h2")

	r.kill(2)
	r.wait("the quorum is not lost", func(st wire.ClusterStatus) bool { return !st.Quorum })
	r.problem(1, "a majority of the voters does not answer", "volctl cluster restore")
	r.refused(4, 6, "a majority of its members is away", tok, append([]string{"join"}, r.host(4)...)...)
	r.refused(1, 6, "a majority of its members is away", "", "token")
	r.start(2)
	r.start(3)
	r.votes([]int{1, 2, 3}, nil)
	r.must(3, "", "leave")
	if code := r.ended(3); code != 3 && code != 0 {
		t.Errorf("the member that left ended with %d", code)
	}
	r.votes([]int{1, 2}, nil)
	r.must(4, tok, append([]string{"join"}, r.host(4)...)...)
	r.start(4)
	r.votes([]int{1, 2, 4}, nil)
}

// TestForeignData checks that a host with the data of another etcd does not join, that an agent
// with another etcd keeps it, and that ports in use are named.
func TestForeignData(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.first()
	tok := r.must(1, "", "token", "-q")

	dir := hostdir.Dir{Data: r.data(2), Config: r.config(2)}
	for _, d := range []string{dir.Path(hostdir.EtcdDir), r.config(3)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{filepath.Join(dir.Path(hostdir.EtcdDir), "file"), filepath.Join(r.config(3), "cluster.yaml")} {
		if err := os.WriteFile(f, []byte("endpoints: [http://10.0.0.1:2379]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.refused(2, 4, "belongs to another cluster", tok, append([]string{"join"}, r.host(2)...)...)
	r.refused(3, 4, "uses another etcd", tok, append([]string{"join"}, r.host(3)...)...)
	r.refused(4, 4, "cannot use port 2379", tok, "join", "--name", "h4", "--address", r.net+".1", "--no-start")
	r.refused(4, 3, "in no cluster", "", "status")
}

// TestRenewal checks that members and clients renew their certificates at two thirds of their life
// without a restart, and that a client whose certificate has ended joins again.
func TestRenewal(t *testing.T) {
	t.Parallel()
	const life = 15 * time.Second
	r := newRig(t)
	r.first("--certificate-life", life.String())
	r.join(2, "--client")

	before := [3]string{}
	cert := func(n int) string {
		raw, err := os.ReadFile(filepath.Join(r.data(n), hostdir.HostCert))
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	before[1], before[2] = cert(1), cert(2)
	r.wait("the certificates are not renewed", func(wire.ClusterStatus) bool { return cert(1) != before[1] && cert(2) != before[2] })
	r.status(2) // the client's new certificate works

	r.kill(2)
	var words string
	for end := time.Now().Add(limit); time.Now().Before(end) && !strings.Contains(words, "ended"); time.Sleep(time.Second) {
		words = r.must(2, "", "status")
	}
	if !strings.Contains(words, "the certificate of this host ended") || !strings.Contains(words, "volctl cluster join") {
		t.Fatalf("the status of a host with an old certificate:\n%s", words)
	}
	r.join(2)
	r.wait("the client has not joined again", func(st wire.ClusterStatus) bool {
		return len(st.Hosts) == 2 && st.Hosts[1].CertEnd.After(time.Now())
	})
	r.status(2)
}
