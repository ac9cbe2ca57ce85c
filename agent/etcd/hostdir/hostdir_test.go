package hostdir

import (
	"os"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/agent/etcd/wire"
)

// TestAgentEndpoints checks that the agent's cluster file lists the voters, and is never without one
// endpoint.
func TestAgentEndpoints(t *testing.T) {
	peer := func(n string, voter bool) Peer {
		return Peer{Name: "h" + n, Client: "https://10.0.0." + n + ":2379", Voter: voter}
	}
	for name, tt := range map[string]struct {
		role    wire.Role
		members []Peer
		want    []string
	}{
		"a voter comes first in its own list": {wire.RoleMember, []Peer{peer("1", true), peer("2", true), peer("3", true)}, []string{"2", "1", "3"}},
		"a learner is not in its own list":    {wire.RoleMember, []Peer{peer("1", true), peer("2", false)}, []string{"1"}},
		"a learner is in no list of a client": {wire.RoleClient, []Peer{peer("1", true), peer("3", false)}, []string{"1"}},
		"no voter is known":                   {wire.RoleMember, []Peer{peer("3", false)}, []string{"2", "3"}},
		"nothing is known":                    {wire.RoleMember, nil, []string{"2"}},
		"a voter that has never run":          {wire.RoleMember, []Peer{{Name: "h4", Voter: true}, peer("1", true)}, []string{"1"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := Dir{Data: t.TempDir(), Config: t.TempDir()}
			s := State{Host: wire.Host{Name: "h2", Address: "10.0.0.2", ClientPort: 2379}, Role: tt.role, Members: tt.members}
			if _, err := d.WriteCluster(s); err != nil {
				t.Fatal(err)
			}
			raw, err := os.ReadFile(d.ClusterFile())
			if err != nil {
				t.Fatal(err)
			}
			var got section
			if err := yaml.Unmarshal(raw, &got); err != nil {
				t.Fatal(err)
			}
			var want []string
			for _, n := range tt.want {
				want = append(want, "https://10.0.0."+n+":2379")
			}
			if !slices.Equal(got.Endpoints, want) {
				t.Errorf("got %v, want %v", got.Endpoints, want)
			}
		})
	}
}
