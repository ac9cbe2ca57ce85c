package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/etcd/cert"
	"github.com/volagent/volagent/agent/etcd/daemon"
	"github.com/volagent/volagent/agent/etcd/hostdir"
	"github.com/volagent/volagent/agent/etcd/join"
	"github.com/volagent/volagent/agent/etcd/member"
	"github.com/volagent/volagent/agent/etcd/server"
	"github.com/volagent/volagent/agent/etcd/token"
	"github.com/volagent/volagent/agent/etcd/wire"
)

// settle is the time that a started host gets to become a part of the cluster.
const settle = time.Minute

// init makes a cluster whose first member is this host.
func (r *runner) init(ctx context.Context) (any, error) {
	if err := r.prepare(); err != nil {
		return nil, err
	}
	unlock, err := lock(r.dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := portsFree(r.Host); err != nil {
		return nil, err
	}

	s := hostdir.State{
		Host: r.Host, ClusterID: daemon.Random(), Role: wire.RoleMember, Prefix: r.Prefix, Life: r.Life, Quota: r.Quota, Boot: daemon.Random(),
	}
	s.Members = []hostdir.Peer{{Name: s.Name, Client: s.ClientURL(), Peer: s.PeerURL(), Voter: true}}
	ca, err := cert.NewAuthority(s.ClusterID, r.now())
	if err != nil {
		return nil, err
	}
	if err := errors.Join(r.dir.Write(hostdir.CACert, ca.CertPEM), r.dir.Write(hostdir.CAKey, ca.KeyPEM)); err != nil {
		return nil, err
	}
	q, err := daemon.NewRequest(r.dir, s.Host)
	if err != nil {
		return nil, err
	}
	registrar := &join.Registrar{Dir: r.dir, State: func() hostdir.State { return s }, Now: r.now}
	a, err := registrar.Sign(q, s.Role, r.now())
	if err != nil {
		return nil, err
	}
	if err := daemon.SaveCertificates(r.dir, a); err != nil {
		return nil, err
	}
	// The state is the last file. Without it, init can be repeated.
	if err := r.dir.Save(s); err != nil {
		return nil, err
	}
	if _, err := r.dir.WriteCluster(s); err != nil {
		return nil, err
	}
	unlock()

	done := wire.Done{ClusterID: s.ClusterID, Role: s.Role, AgentConfig: r.dir.ClusterFile()}
	if done.Started, err = r.start(ctx); err != nil {
		return nil, err
	}
	done.Lines = []string{fmt.Sprintf("cluster %s has its first member, %s", s.ClusterID, s.Name)}
	done.Lines = append(done.Lines, startLines(done.Started)...)
	if done.Started {
		if err := waitFor(ctx, r.dir, s); err != nil {
			return nil, err
		}
		t, expires, err := r.newToken(ctx, s, wire.TokenLife)
		if err != nil {
			return nil, err
		}
		done.Token, done.Expires = t, expires
		done.Lines = append(done.Lines, "on another host, within an hour: volctl cluster join, with the token below on standard input")
	} else {
		done.Lines = append(done.Lines, "then, for another host: volctl cluster token")
	}
	done.Lines = append(done.Lines, "the agent reads "+done.AgentConfig+" after: systemctl restart volagent")
	return done, nil
}

// prepare checks the host's addresses and the data directory.
func (r *runner) prepare() error {
	h := r.Host
	switch {
	case net.ParseIP(h.Address) != nil && net.ParseIP(h.Address).IsUnspecified(), h.Address == "", h.Address == "localhost":
		return wire.Errorf(api.CodeInvalid, "name an address that the other hosts reach, with --address", "other hosts cannot reach the address %q", h.Address)
	case h.Listen != "" && net.ParseIP(h.Listen) == nil:
		return wire.Errorf(api.CodeInvalid, "", "%q is not an IP address on which the host can listen", h.Listen)
	case h.Name == "" || strings.ContainsAny(h.Name, "=,/ "):
		return wire.Errorf(api.CodeInvalid, "name the host with --name", "%q cannot be the name of a host", h.Name)
	}
	return r.dir.Prepare()
}

// lock locks the data directory. The returned function may be called twice.
func lock(dir hostdir.Dir) (func(), error) {
	unlock, err := dir.Lock()
	if errors.Is(err, hostdir.ErrLocked) {
		return nil, wire.Errorf(api.CodeRefused, "wait for the other command", "another command or volagent-etcd uses %s", dir.Data)
	}
	return unlock, err
}

// portsFree refuses ports that another program uses.
func portsFree(h wire.Host) error {
	at := strings.Trim(server.ListenHost(hostdir.State{Host: h}), "[]")
	for _, p := range []struct {
		port int
		flag string
	}{{h.ClientPort, "--client-port"}, {h.PeerPort, "--peer-port"}, {h.JoinPort, "--join-port"}} {
		l, err := net.Listen("tcp", net.JoinHostPort(at, strconv.Itoa(p.port)))
		if err != nil {
			return wire.Errorf(api.CodeRefused, "stop the program that uses the port, or name another port with "+p.flag, "cannot use port %d of %s: %v", p.port, at, err)
		}
		_ = l.Close() // nothing was sent
	}
	return nil
}

// waitFor waits until this host's etcd has a leader and the cluster has a description.
func waitFor(ctx context.Context, dir hostdir.Dir, s hostdir.State) error {
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	c, err := member.Connect(dir, s)
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		meta, err := c.Meta(ctx, s.Prefix)
		if err == nil && meta.Exists() {
			return nil
		}
		if pause(ctx, 300*time.Millisecond) != nil {
			return wire.Errorf(api.CodeTimeout, "journalctl -u volagent-etcd", "volagent-etcd was started, and did not become ready: %v", err)
		}
	}
}

// join makes this host a part of a cluster.
func (r *runner) join(ctx context.Context) (any, error) {
	t, err := token.Parse(r.Token)
	if err != nil {
		return nil, err
	}
	again, err := r.mayRejoin()
	if err != nil {
		return nil, err
	}
	if !again {
		if err := r.prepare(); err != nil {
			return nil, err
		}
	}
	unlock, err := lock(r.dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if r.Role != wire.RoleClient && !again {
		if err := portsFree(r.Host); err != nil {
			return nil, err
		}
	}

	q, err := daemon.NewRequest(r.dir, r.Host)
	if err != nil {
		return nil, err
	}
	q.Wish = r.Role
	a, err := join.Ask(ctx, t, q, r.now)
	if err != nil {
		return nil, err
	}
	if p, err := cert.PeriodOf(a.HostCert); err != nil || p.Words(r.now()) != "" {
		return nil, wire.Errorf(api.CodeRefused, "set the clocks of all hosts, for example with chrony", "the new certificate %s", p.Words(r.now()))
	}
	s := hostdir.State{Host: r.Host, ClusterID: a.ClusterID, Role: a.Role, Prefix: a.Prefix, Life: a.Life, Quota: a.Quota, Members: a.Members}
	if err := errors.Join(daemon.SaveCertificates(r.dir, a), r.dir.Save(s)); err != nil {
		return nil, err
	}
	if s.Role != wire.RoleWitness {
		if _, err := r.dir.WriteCluster(s); err != nil {
			return nil, err
		}
	}
	unlock()
	return r.joined(ctx, s)
}

// mayRejoin reports whether this host is a client whose certificate has ended, so that it may join
// again without leaving.
func (r *runner) mayRejoin() (bool, error) {
	s, err := r.dir.Load()
	var e *api.Error
	switch {
	case errors.As(err, &e): // the host is in no cluster
		return false, nil
	case err != nil || s.Role != wire.RoleClient:
		return false, err
	}
	certPEM, err := r.dir.Read(hostdir.HostCert)
	if err != nil {
		return false, err
	}
	p, err := cert.PeriodOf(certPEM)
	if err != nil || !p.Expired(r.now()) {
		return false, err
	}
	r.Host, r.Role = s.Host, wire.RoleClient
	return true, nil
}

// joined starts volagent-etcd and describes the outcome of a join.
func (r *runner) joined(ctx context.Context, s hostdir.State) (any, error) {
	done := wire.Done{ClusterID: s.ClusterID, Role: s.Role}
	line := fmt.Sprintf("%s joined cluster %s as a %s", s.Name, s.ClusterID, s.Role)
	voters := 0
	for _, m := range s.Members {
		if m.Voter {
			voters++
		}
	}
	switch waits := s.RunsEtcd() && voters%2 == 1; {
	case waits && len(s.Members)%2 == 0:
		line += "; it votes as soon as one more host has joined, so that the number of voters is odd"
	case waits:
		line += "; it votes in a few seconds"
	}
	done.Lines = append(done.Lines, line)

	var err error
	if done.Started, err = r.start(ctx); err != nil {
		return nil, err
	}
	done.Lines = append(done.Lines, startLines(done.Started)...)
	if s.Role != wire.RoleWitness {
		done.AgentConfig = r.dir.ClusterFile()
		done.Lines = append(done.Lines, "the agent reads "+done.AgentConfig+" after: systemctl restart volagent")
	}
	return done, nil
}

// token makes a token for another host.
func (r *runner) token(ctx context.Context) (any, error) {
	s, err := r.dir.Load()
	if err != nil {
		return nil, err
	}
	life := r.Life
	if life <= 0 {
		life = wire.TokenLife
	}
	t, expires, err := r.newToken(ctx, s, life)
	if err != nil {
		return nil, err
	}
	return wire.Done{ClusterID: s.ClusterID, Token: t, Expires: expires}, nil
}

// newToken makes a token, stores its record, and deletes old records.
func (r *runner) newToken(ctx context.Context, s hostdir.State, life time.Duration) (string, time.Time, error) {
	c, err := member.Connect(r.dir, s)
	if err != nil {
		return "", time.Time{}, err
	}
	defer c.Close()
	hosts, err := c.Hosts(ctx)
	if err != nil {
		return "", time.Time{}, err
	}
	addresses := join.Addresses(hosts)
	if len(addresses) == 0 && s.RunsEtcd() {
		addresses = []string{s.JoinAddress()} // this host has not stored itself yet
	}
	ca, err := r.dir.Read(hostdir.CACert)
	if err != nil {
		return "", time.Time{}, err
	}

	t, rec := token.New(addresses, cert.Fingerprint(ca), r.now(), life)
	raw, err := json.Marshal(rec)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("cannot encode the token's record: %w", err)
	}
	if err := c.Put(ctx, member.TokenKey(t.ID), raw); err != nil {
		return "", time.Time{}, fmt.Errorf("cannot store the token: %w", err)
	}
	dropTokens(ctx, c, r.now())
	return t.String(), rec.Expires, nil
}

// dropTokens deletes the records of tokens that ended long ago. A record that stays does no harm.
func dropTokens(ctx context.Context, c *member.Client, now time.Time) {
	kvs, err := c.List(ctx, member.TokensPrefix)
	if err != nil {
		return
	}
	for _, kv := range kvs {
		var rec token.Record
		if json.Unmarshal(kv.Value, &rec) == nil && rec.Outdated(now) {
			_ = c.Delete(ctx, kv.Key) // the next token tries again
		}
	}
}
