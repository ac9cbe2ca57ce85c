// Package quorum decides which hosts of a cluster vote. All its functions are pure. A cluster has
// one, three or five voters. A host that waits for a partner is a learner: it has all data, and does
// not vote, because an even number of voters tolerates no more failures than one voter less.
package quorum

import (
	"fmt"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/etcd/wire"
)

const (
	// MaxMembers is the greatest number of members. Further hosts are clients.
	MaxMembers = 5

	// MaxLearners is the greatest number of members that wait at the same time.
	MaxLearners = 2
)

// Member is one member of the cluster.
type Member struct {
	Name    string
	ID      uint64
	Voter   bool
	Healthy bool   // its etcd answers, has a leader, and is not far behind it
	Version string // of its etcd; empty if it does not answer
}

// NextRole returns the role of the next host that joins. An empty wish lets the cluster choose.
func NextRole(members int, wish wire.Role) (wire.Role, error) {
	switch {
	case wish == wire.RoleClient:
		return wire.RoleClient, nil
	case members < MaxMembers && wish == wire.RoleWitness:
		return wire.RoleWitness, nil
	case members < MaxMembers:
		return wire.RoleMember, nil
	case wish == wire.RoleWitness:
		return "", wire.Errorf(api.CodeRefused, "remove a member first, or let the host join without --witness",
			"the cluster has %d members, which is the most it can have; it needs no witness", members)
	default:
		return wire.RoleClient, nil
	}
}

// Promotions returns the learners that become voters now: two at a time, so that the number of
// voters stays odd, or one if it is even.
func Promotions(members []Member) []Member {
	ready := slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.Voter || !m.Healthy })
	n := 2
	if len(voters(members))%2 == 0 {
		n = 1
	}
	if len(ready) < n || lost(members) {
		return nil
	}

	return ready[:n]
}

// Tolerates returns the number of further voters that may fail without a loss of the quorum. It is
// negative if the quorum is lost.
func Tolerates(members []Member) int {
	return len(healthy(voters(members))) - majority(len(voters(members)))
}

// CheckRemove refuses to remove a member if the others would have no quorum. The argument self says
// that the member itself leaves.
func CheckRemove(members []Member, name string, self bool) error {
	i := slices.IndexFunc(members, func(m Member) bool { return m.Name == name })
	if i < 0 {
		return wire.Errorf(api.CodeNotFound, "volctl cluster status", "the cluster has no member %q", name)
	}
	if lost(members) {
		return wire.Errorf(api.CodeTimeout, "start more members, or restore a backup: volctl cluster restore FILE",
			"a majority of the voters does not answer (%s), so that etcd accepts no change", strings.Join(silent(voters(members)), ", "))
	}

	m := members[i]
	rest := slices.Delete(slices.Clone(members), i, i+1)
	left := voters(rest)
	switch {
	case !m.Voter:
		return nil
	case len(left) == 0 && self:
		return wire.Errorf(api.CodeRefused, "to end the cluster on this host, and move its data aside: volctl cluster leave --forget",
			"%q is the only voter; without it the cluster would lose its quorum", name)
	case len(left) == 0:
		return wire.Errorf(api.CodeRefused, "volctl cluster status", "%q is the only voter; without it the cluster would lose its quorum", name)
	case len(healthy(left)) < majority(len(left)):
		return wire.Errorf(api.CodeRefused, "first remove the dead member, or start it again: volctl cluster status",
			"without %q the cluster would lose its quorum: of the other voters, %s not answer", name, does(silent(left)))
	default:
		return nil
	}
}

// CheckUpgrade refuses to restart a member with another version of etcd. The others must be healthy
// and run at most two versions: the one before and the one after the upgrade, which may be one minor
// version apart.
func CheckUpgrade(members []Member, self, installed string) error {
	for _, m := range members {
		if !m.Healthy {
			return wire.Errorf(api.CodeRefused, "volctl cluster status", "member %q is not healthy; etcd is upgraded only while all members are", m.Name)
		}
	}

	var mine string
	for _, m := range members {
		if m.Name == self {
			mine = m.Version
		}
	}
	if d, ok := minors(mine, installed); !ok || d < 0 || d > 1 {
		return wire.Errorf(api.CodeRefused, "install the releases of volagent in between, one at a time",
			"this host runs etcd %s, and etcd %s is installed: etcd is upgraded by one minor version at a time", mine, installed)
	}

	for _, m := range members {
		if m.Version != mine && m.Version != installed {
			return wire.Errorf(api.CodeRefused, "first let all members run one version: volctl cluster status",
				"member %q runs etcd %s, and this host runs etcd %s", m.Name, m.Version, mine)
		}
	}

	return nil
}

// CheckJoin refuses a host whose etcd does not fit the cluster's version.
func CheckJoin(cluster, host string) error {
	d, ok := minors(cluster, host)
	switch {
	case !ok:
		return wire.Errorf(api.CodeRefused, "install the same release of volagent on all hosts", "cannot compare etcd %q of the cluster with etcd %q of this host", cluster, host)
	case d < 0:
		return wire.Errorf(api.CodeRefused, "install the newer release of volagent on this host", "etcd %s of this host is too old: the cluster runs etcd %s", host, cluster)
	case d > 1:
		return wire.Errorf(api.CodeRefused, "upgrade the members first: volctl cluster upgrade", "the cluster's etcd %s is too old: this host has etcd %s, and one minor version may differ", cluster, host)
	default:
		return nil
	}
}

// minors returns by how many minor versions b is newer than a. It is not ok for another major
// version.
func minors(a, b string) (n int, ok bool) {
	var aMajor, aMinor, bMajor, bMinor int
	if _, err := fmt.Sscanf(a, "%d.%d", &aMajor, &aMinor); err != nil {
		return 0, false
	}
	if _, err := fmt.Sscanf(b, "%d.%d", &bMajor, &bMinor); err != nil {
		return 0, false
	}
	return bMinor - aMinor, aMajor == bMajor
}

func voters(members []Member) []Member {
	return slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return !m.Voter })
}

func healthy(members []Member) []Member {
	return slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return !m.Healthy })
}

func silent(members []Member) (names []string) {
	for _, m := range members {
		if !m.Healthy {
			names = append(names, fmt.Sprintf("%q", m.Name))
		}
	}
	return names
}

func does(names []string) string {
	if len(names) == 1 {
		return names[0] + " does"
	}
	return strings.Join(names, " and ") + " do"
}

func majority(n int) int { return n/2 + 1 }

func lost(members []Member) bool { return Tolerates(members) < 0 }
