package join

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/etcd/cert"
	"github.com/volagent/volagent/agent/etcd/hostdir"
	"github.com/volagent/volagent/agent/etcd/member"
	"github.com/volagent/volagent/agent/etcd/quorum"
	"github.com/volagent/volagent/agent/etcd/token"
	"github.com/volagent/volagent/agent/etcd/wire"
)

// Registrar admits hosts to the cluster. It runs on a member.
type Registrar struct {
	Dir    hostdir.Dir
	State  func() hostdir.State  // the newest state of this member
	Client func() *member.Client // for the members that this member knows now
	Now    func() time.Time

	// one lets only one host join at a time through this member. Two members may admit hosts at the
	// same time; etcd then decides the order.
	one sync.Mutex
}

// Admit admits a host with a token. The host may repeat its request, if the answer was lost: the
// token remembers the key of the host.
func (r *Registrar) Admit(ctx context.Context, q Request) (Answer, error) {
	if err := q.check(); err != nil {
		return Answer{}, err
	}
	c := r.Client()
	now := r.Now()
	key := cert.Fingerprint(q.HostCSR)
	// A request without a right token must not hold up others, so it is refused before the lock.
	if _, _, err := checkToken(ctx, c, q, key, now); err != nil {
		return Answer{}, err
	}
	r.one.Lock()
	defer r.one.Unlock()
	// Another host may have used the token since.
	kv, rec, err := checkToken(ctx, c, q, key, now)
	if err != nil {
		return Answer{}, err
	}

	role, err := r.place(ctx, c, q, key)
	if err != nil {
		return Answer{}, err
	}
	a, err := r.Sign(q, role, now)
	if err != nil {
		return Answer{}, err
	}

	used, err := json.Marshal(rec.UsedBy(q.Host.Name, key, now))
	if err != nil {
		return Answer{}, fmt.Errorf("cannot encode the token's record: %w", err)
	}
	if ok, err := c.PutIf(ctx, kv, used); err != nil || !ok {
		if err == nil {
			err = wire.Errorf(api.CodePermission, "make another token on a member: volctl cluster token", "the join token was used already, by another host")
		}
		return Answer{}, fmt.Errorf("cannot use the token: %w", err)
	}

	if err := r.add(ctx, c, q, role, key, &a); err != nil {
		r.giveBack(ctx, c, kv)
		return Answer{}, err
	}
	return a, nil
}

// These are the greatest lengths of texts in a request, in bytes. Every host in the network can send a request.
const (
	maxID   = 64 // of a token; volctl makes ids with 12
	maxName = 128
)

// check refuses a request that can never succeed.
func (q Request) check() error {
	bad := func(format string, args ...any) error {
		return wire.Errorf(api.CodeInvalid, "", format, args...)
	}
	h := q.Host
	switch {
	case len(q.ID) > maxID:
		return token.Unknown()
	case len(h.Name) > maxName:
		return bad("the name of the host has %d bytes; at most %d are possible", len(h.Name), maxName)
	case h.Name == "" || strings.ContainsAny(h.Name, "=,/ \n"):
		return bad("%q cannot be the name of a host: it must not be empty or contain spaces and =,/", h.Name)
	case h.Address == "":
		return bad("the host names no address")
	case slices.Contains([]string{"localhost", "0.0.0.0", "::"}, h.Address):
		return bad("other hosts cannot reach the address %q", h.Address)
	}
	for _, port := range []int{h.ClientPort, h.PeerPort, h.JoinPort} {
		if port < 1 || port > 65535 {
			return bad("%d is not a port", port)
		}
	}
	return nil
}

// checkToken reads the record of the request's token, and returns an error unless the host with the
// given key may use the token.
func checkToken(ctx context.Context, c *member.Client, q Request, key string, now time.Time) (member.KV, token.Record, error) {
	var rec token.Record
	kv, err := c.Get(ctx, member.TokenKey(q.ID))
	if err == nil && kv.Mod > 0 {
		err = json.Unmarshal(kv.Value, &rec)
	}
	switch {
	case err != nil:
		return kv, rec, fmt.Errorf("cannot check the token: %w", err)
	case kv.Mod == 0:
		return kv, rec, token.Unknown()
	default:
		return kv, rec, rec.Check(q.Secret, key, now)
	}
}

// place decides the role of a host, and refuses one that does not fit.
func (r *Registrar) place(ctx context.Context, c *member.Client, q Request, key string) (wire.Role, error) {
	members, judged, err := member.Judged(ctx, c)
	if err != nil {
		return "", err
	}
	hosts, err := c.Hosts(ctx)
	if err != nil {
		return "", err
	}

	if h, ok := hosts[q.Host.Name]; ok && h.Key == key {
		return h.Role, nil // the answer to the same request was lost
	}
	if err := r.checkName(q.Host, members, hosts); err != nil {
		return "", err
	}

	role, err := quorum.NextRole(len(members), q.Wish)
	if err != nil || role == wire.RoleClient {
		return role, err
	}
	for _, m := range judged {
		if m.Version == "" {
			continue
		}
		if err := quorum.CheckJoin(m.Version, q.Version); err != nil {
			return "", err
		}
	}
	return role, nil
}

// checkName refuses a host whose name or address another host has. A client whose certificate has
// ended joins again under its name.
func (r *Registrar) checkName(host wire.Host, members []member.Member, hosts map[string]member.Host) error {
	peer := hostdir.State{Host: host}.PeerURL()
	for _, m := range Named(members, hosts) {
		switch {
		case m.Name == host.Name:
			return wire.Errorf(api.CodeRefused, "name the host otherwise with --name, or remove the old member first: volctl cluster status",
				"the cluster has a member %q already", host.Name)
		case m.Peer == peer:
			return wire.Errorf(api.CodeRefused, "if that member is gone, remove it first: volctl cluster status", "member %q has the address %s already", m.Name, peer)
		}
	}

	h, ok := hosts[host.Name]
	if ok && h.Role == wire.RoleClient && r.Now().Before(h.CertEnd) {
		return wire.Errorf(api.CodeRefused, "name the host otherwise with --name, or remove the old host first: volctl cluster status",
			"the cluster has a host %q already", host.Name)
	}
	return nil
}

// Sign makes the certificates of a host.
func (r *Registrar) Sign(q Request, role wire.Role, now time.Time) (Answer, error) {
	s := r.State()
	ca, key, err := r.authority()
	if err != nil {
		return Answer{}, err
	}

	a := Answer{CACert: ca.CertPEM, ClusterID: s.ClusterID, Role: role, Prefix: s.Prefix, Life: s.Life, Quota: s.Quota}
	names := hostdir.State{Host: q.Host}.Names()
	if a.HostCert, err = ca.Sign(q.HostCSR, cert.Subject{Name: q.Host.Name, Hosts: names}, now, s.Life); err != nil {
		return Answer{}, badRequest(err)
	}
	if role != wire.RoleWitness {
		if a.AgentCert, err = ca.Sign(q.AgentCSR, cert.Subject{Name: q.Host.Name + " agent"}, now, s.Life); err != nil {
			return Answer{}, badRequest(err)
		}
	}
	if role != wire.RoleClient {
		a.CAKey = key
	}
	return a, nil
}

func badRequest(err error) error { return wire.Errorf(api.CodeInvalid, "", "%v", err) }

// authority loads the cluster's authority.
func (r *Registrar) authority() (*cert.Authority, []byte, error) {
	certPEM, err := r.Dir.Read(hostdir.CACert)
	if err != nil {
		return nil, nil, err
	}
	key, err := r.Dir.Read(hostdir.CAKey)
	if err != nil {
		return nil, nil, err
	}
	ca, err := cert.LoadAuthority(certPEM, key)
	return ca, key, err
}

// add stores the host, adds it to etcd's members unless it is a client, and lists all members.
func (r *Registrar) add(ctx context.Context, c *member.Client, q Request, role wire.Role, key string, a *Answer) error {
	period, err := cert.PeriodOf(a.HostCert)
	if err != nil {
		return err
	}
	h := member.Host{Host: q.Host, Role: role, Version: q.Version, CertEnd: period.End, Key: key, Machine: q.Machine}
	raw, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("cannot encode the host: %w", err)
	}
	// The key of the host comes first, because it has the name of a member that has not run yet.
	if err := c.Put(ctx, member.HostKey(q.Host.Name), raw); err != nil {
		return fmt.Errorf("cannot store the host: %w", err)
	}
	if role != wire.RoleClient {
		if err := addLearner(ctx, c, hostdir.State{Host: q.Host}.PeerURL()); err != nil {
			_ = c.Delete(ctx, member.HostKey(q.Host.Name)) // a key that stays prevents nothing
			return fmt.Errorf("cannot add %q to etcd's members: %w", q.Host.Name, err)
		}
	}

	a.Members, err = Peers(ctx, c)
	return err
}

// addLearner adds a member. etcd refuses that for some seconds after another member has joined or
// failed, so addLearner repeats it.
func addLearner(ctx context.Context, c *member.Client, peer string) error {
	const patience = 20 * time.Second
	end := time.Now().Add(patience)
	for {
		err := c.AddLearner(ctx, peer)
		if !member.IsUnhealthy(err) {
			return err
		}
		if time.Now().After(end) {
			return wire.Errorf(api.CodeRefused, "first remove the dead member: volctl cluster status", "not all members answer; etcd accepts a new member only while they do")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// Peers lists the members with their names. A member that never ran has its name only in the key of
// its host.
func Peers(ctx context.Context, c *member.Client) ([]hostdir.Peer, error) {
	members, _, _, err := c.Members(ctx)
	if err != nil {
		return nil, err
	}
	hosts, err := c.Hosts(ctx)
	if err != nil {
		return nil, err
	}
	return Named(members, hosts), nil
}

// Named joins etcd's members with the stored hosts.
func Named(members []member.Member, hosts map[string]member.Host) (peers []hostdir.Peer) {
	for _, m := range members {
		p := hostdir.Peer{Name: m.Name, Client: m.Client, Peer: m.Peer, Voter: m.Voter}
		for name, h := range hosts {
			if s := (hostdir.State{Host: h.Host}); p.Name == "" && s.PeerURL() == m.Peer {
				p.Name = name
			}
		}
		if p.Name == "" {
			p.Name = m.HexID()
		}
		peers = append(peers, p)
	}
	slices.SortFunc(peers, func(a, b hostdir.Peer) int { return strings.Compare(a.Name, b.Name) })
	return peers
}

// giveBack makes a token usable again whose host could not be added. If that fails, the operator needs
// another token.
func (r *Registrar) giveBack(ctx context.Context, c *member.Client, unused member.KV) {
	if kv, err := c.Get(ctx, unused.Key); err == nil {
		_, _ = c.PutIf(ctx, kv, unused.Value) // without success, the token remains used
	}
}

// Renew signs new certificates for the host that has the certificate with the given name.
func (r *Registrar) Renew(ctx context.Context, q Request, name string) (Answer, error) {
	if err := q.check(); err != nil {
		return Answer{}, err
	}
	if q.Host.Name != name {
		return Answer{}, wire.Errorf(api.CodePermission, "", "a host can renew only its own certificates")
	}

	c := r.Client()
	hosts, err := c.Hosts(ctx)
	if err != nil {
		return Answer{}, err
	}
	h, ok := hosts[name]
	if !ok {
		return Answer{}, wire.Errorf(api.CodePermission, "let the host forget the cluster, and join again: volctl cluster leave --forget", "the cluster has no host %q any more", name)
	}

	a, err := r.Sign(q, h.Role, r.Now())
	a.CAKey = nil
	return a, err
}

// Addresses returns the addresses of the join listeners of all members.
func Addresses(hosts map[string]member.Host) (addresses []string) {
	for _, h := range hosts {
		if h.Role != wire.RoleClient {
			addresses = append(addresses, net.JoinHostPort(h.Address, strconv.Itoa(h.JoinPort)))
		}
	}
	slices.Sort(addresses)
	return addresses
}
