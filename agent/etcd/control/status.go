package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/etcd/cert"
	"github.com/volagent/volagent/agent/etcd/hostdir"
	"github.com/volagent/volagent/agent/etcd/join"
	"github.com/volagent/volagent/agent/etcd/member"
	"github.com/volagent/volagent/agent/etcd/quorum"
	"github.com/volagent/volagent/agent/etcd/wire"
	"github.com/volagent/volagent/volmgr/suggest"
)

// nearlyFull is the part of the quota, in percent, above which a member is shown as nearly full.
const nearlyFull = 80

// status describes the cluster, as far as its members answer.
func (r *runner) status(ctx context.Context) (any, error) {
	s, c, err := r.connect()
	if err != nil {
		return nil, err
	}
	defer c.Close()

	st := wire.ClusterStatus{ClusterID: s.ClusterID, Self: s.Name, Hosts: []wire.HostStatus{}, Problems: []wire.Problem{}}
	members, _, _, err := c.Members(ctx)
	var unreachable *api.Error
	if err != nil && !errors.As(err, &unreachable) {
		return nil, err
	}
	if err != nil {
		st.Problems = append(st.Problems, wire.Problem{Text: err.Error(), Fix: "on the members: systemctl status volagent-etcd"})
		members = remembered(s)
	}

	states := c.StatusOf(ctx, member.ClientURLs(members))
	judged := member.Judge(members, states)
	st.Tolerates = quorum.Tolerates(judged)
	st.Quorum = st.Tolerates >= 0
	hosts := map[string]member.Host{}
	if st.Quorum {
		if hosts, err = c.Hosts(ctx); err != nil {
			return nil, err
		}
		meta, err := c.Meta(ctx, s.Prefix)
		if err != nil {
			return nil, err
		}
		st.Epoch, st.Schema, st.Suspended = meta.Value.Epoch, meta.Value.Schema, meta.Value.Suspended
	}

	hostRows(&st, s, members, judged, states, hosts)
	st.Problems = append(st.Problems, r.problems(s, st)...)
	return st, nil
}

// remembered returns the members that this host knows last.
func remembered(s hostdir.State) (members []member.Member) {
	for _, p := range s.Members {
		members = append(members, member.Member{Name: p.Name, Peer: p.Peer, Client: p.Client, Voter: p.Voter})
	}
	return members
}

// hostRows adds the members and the clients to a status.
func hostRows(st *wire.ClusterStatus, s hostdir.State, members []member.Member, judged []quorum.Member, states map[string]member.Status, hosts map[string]member.Host) {
	names := map[string]string{}
	for _, p := range join.Named(members, hosts) {
		names[p.Peer] = p.Name
	}

	for i, m := range members {
		state := states[m.Client]
		h := hosts[names[m.Peer]]
		row := wire.HostStatus{
			Name: names[m.Peer], Role: h.Role, Endpoint: m.Client, Voter: m.Voter, Healthy: judged[i].Healthy,
			Version: state.Version, Size: state.Size, InUse: state.InUse, Quota: state.Quota, CertEnd: h.CertEnd,
		}
		if m.ID != 0 {
			row.ID = m.HexID()
		}
		if row.Role == "" {
			row.Role = wire.RoleMember
		}
		row.Leader = state.Leader != 0 && state.Leader == m.ID
		if state.Full {
			row.Alarms = append(row.Alarms, "NOSPACE")
		}
		if state.Corrupt {
			row.Alarms = append(row.Alarms, "CORRUPT")
		}
		switch {
		case m.Client == "":
			row.Error = "has never run"
		case state.Err != nil:
			row.Error = state.Err.Error()
		case state.Leader == 0:
			row.Error = "knows no leader"
		}
		delete(hosts, row.Name)
		st.Hosts = append(st.Hosts, row)
	}

	for _, h := range hosts {
		st.Hosts = append(st.Hosts, wire.HostStatus{Name: h.Name, Role: h.Role, CertEnd: h.CertEnd})
	}
	slices.SortFunc(st.Hosts, func(a, b wire.HostStatus) int { return strings.Compare(a.Name, b.Name) })
}

// problems lists the problems that a status shows.
func (r *runner) problems(s hostdir.State, st wire.ClusterStatus) (all []wire.Problem) {
	add := func(fix, format string, args ...any) {
		all = append(all, wire.Problem{Text: fmt.Sprintf(format, args...), Fix: fix})
	}
	if !st.Quorum {
		add("start more members; if they are lost: volctl cluster restore FILE", "a majority of the voters does not answer; no shared volume can move")
	}
	if st.Suspended != "" {
		add("when every host has registered: volctl cluster resume", "single-writer volumes are suspended: %s", st.Suspended)
	}

	if st.Quorum && !slices.ContainsFunc(st.Hosts, func(h wire.HostStatus) bool { return h.Name == s.Name }) {
		add("volctl cluster leave --forget", "the cluster does not know this host any more; it was removed")
	}

	versions := map[string]bool{}
	learners, full := 0, false
	for _, h := range st.Hosts {
		if h.Version != "" {
			versions[h.Version] = true
		}
		if h.Endpoint != "" && !h.Voter {
			learners++
		}
		full = full || slices.Contains(h.Alarms, "NOSPACE")
		switch {
		case h.Error != "" && h.Role != wire.RoleClient && h.Name != s.Name:
			add("start volagent-etcd there, or replace the member: "+suggest.Command("volctl cluster remove %s", h.Name), "member %q does not work: %s", h.Name, h.Error)
		case h.Error != "":
			add("systemctl status volagent-etcd", "the etcd of this host does not work: %s", h.Error)
		}
		if slices.Contains(h.Alarms, "CORRUPT") {
			add("replace the member: "+suggest.Command("volctl cluster remove %s", h.Name), "the data of member %q differs from that of the others", h.Name)
		}
		if h.Quota > 0 && h.InUse*100 > h.Quota*nearlyFull {
			add("volctl cluster compact --quota SIZE", "etcd of member %q uses %d %% of its quota", h.Name, h.InUse*100/h.Quota)
		}
		certProblem(r.now(), s.Life, add, h)
	}
	if full {
		add("volctl cluster compact", "etcd is full: it has reached its quota, and accepts no changes until space is freed")
	}
	if len(versions) > 1 {
		add("on the members with the older one: volctl cluster upgrade", "the members run several versions of etcd")
	}
	if st.Quorum && st.Tolerates == 0 {
		add("add hosts until three members vote: volctl cluster token", "%s", noFailures(learners))
	}
	return append(all, ownCertificate(r.dir, s, r.now())...)
}

func noFailures(learners int) string {
	if learners > 0 {
		return "the cluster tolerates the failure of no voter; a member waits for one more host, so that the number of voters is odd"
	}
	return "the cluster tolerates the failure of no voter"
}

// certProblem reports a certificate in the stored hosts that ends soon. Its begin is not stored, so a
// share of the cluster's usual life counts as soon. A member signs its own certificate, also after its
// end. A client needs a member for that, and a certificate that is valid.
func certProblem(now time.Time, life time.Duration, add func(fix, format string, args ...any), h wire.HostStatus) {
	switch {
	case h.CertEnd.IsZero():
	case now.After(h.CertEnd) && h.Role == wire.RoleClient:
		add("on that host: volctl cluster join, with a new token", "the certificate of host %q %s", h.Name, cert.Period{End: h.CertEnd}.Words(now))
	case now.After(h.CertEnd):
		add("on that host: systemctl restart volagent-etcd; a member renews its own certificate", "the certificate of host %q %s", h.Name, cert.Period{End: h.CertEnd}.Words(now))
	case h.CertEnd.Sub(now) < life/6:
		add("on that host: journalctl -u volagent-etcd", "the certificate of host %q ends at %s and could not be renewed", h.Name, h.CertEnd.UTC().Format("2006-01-02"))
	}
}

// ownCertificate reports a problem with the certificate on this host, which the cluster may not know.
func ownCertificate(dir hostdir.Dir, s hostdir.State, now time.Time) []wire.Problem {
	raw, err := dir.Read(hostdir.HostCert)
	if err != nil {
		return []wire.Problem{{Text: err.Error()}}
	}
	p, err := cert.PeriodOf(raw)
	if err != nil {
		return []wire.Problem{{Text: err.Error()}}
	}
	words := p.Words(now)
	switch {
	case words == "":
		return nil
	case s.Role == wire.RoleClient && p.Expired(now):
		return []wire.Problem{{Text: "the certificate of this host " + words, Fix: "volctl cluster join, with a new token"}}
	case now.Before(p.Begin):
		return []wire.Problem{{Text: "the certificate of this host " + words, Fix: "set the clocks of all hosts, for example with chrony"}}
	default:
		return []wire.Problem{{Text: "the certificate of this host " + words, Fix: "systemctl restart volagent-etcd"}}
	}
}
