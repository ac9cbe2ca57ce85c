package daemon

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/volagent/volagent/agent/etcd/cert"
	"github.com/volagent/volagent/agent/etcd/hostdir"
	"github.com/volagent/volagent/agent/etcd/join"
	"github.com/volagent/volagent/agent/etcd/member"
	"github.com/volagent/volagent/agent/etcd/quorum"
	"github.com/volagent/volagent/agent/etcd/server"
	"github.com/volagent/volagent/agent/etcd/wire"
	"github.com/volagent/volagent/agent/machine"
	"github.com/volagent/volagent/volmgr/shared"
)

// round does all duties once. A duty that fails does not prevent the others.
func (d *Daemon) round(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, roundLimit)
	defer cancel()

	d.say("renew the certificates", d.renew(ctx))
	hosts, err := d.Client().Hosts(ctx)
	d.say("read the hosts of the cluster", err)
	if err != nil {
		return
	}

	d.say("update the members", d.updateMembers(ctx, hosts))
	d.say("store this host in the cluster", d.publish(ctx, hosts))
	if d.etcd == nil {
		return
	}
	d.say("describe the cluster", d.describe(ctx))
	if d.etcd.Leads() {
		d.say("make a learner a voter", d.promote(ctx))
	}
}

// updateMembers stores the members, and tells the agent.
func (d *Daemon) updateMembers(ctx context.Context, hosts map[string]member.Host) error {
	members, cluster, certain, err := d.Client().Members(ctx)
	if err != nil || !certain {
		return err
	}

	s := d.State()
	peers := join.Named(members, hosts)
	if !slices.Equal(peers, s.Members) || s.EtcdCluster != cluster {
		err = d.keep(func(s *hostdir.State) { s.Members, s.EtcdCluster = peers, cluster })
	}
	if s.Role != wire.RoleWitness {
		changed, werr := d.dir.WriteCluster(d.State())
		if changed {
			d.log.Info("wrote the agent's cluster file; the agent reads it when it starts", "file", d.dir.ClusterFile())
		}
		err = errors.Join(err, werr)
	}
	return err
}

// publish stores this host in the cluster, if that has changed.
func (d *Daemon) publish(ctx context.Context, hosts map[string]member.Host) error {
	s := d.State()
	certPEM, err := d.dir.Read(hostdir.HostCert)
	if err != nil {
		return err
	}
	period, err := cert.PeriodOf(certPEM)
	if err != nil {
		return err
	}

	old, ok := hosts[s.Name]
	h := member.Host{Host: s.Host, Role: s.Role, Version: server.Version, CertEnd: period.End, Key: old.Key, Machine: machine.Identity()}
	if ok && h.CertEnd.Equal(old.CertEnd) {
		h.CertEnd = old.CertEnd // the same time may have another zone
	}
	if h == old {
		return nil
	}
	if !ok && s.Role == wire.RoleClient {
		return fmt.Errorf("%w: the cluster does not know this host any more", ErrLeft)
	}

	raw, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("cannot encode the host: %w", err)
	}
	return d.Client().Put(ctx, member.HostKey(s.Name), raw)
}

// describe creates the description of a new cluster, which the agents need.
func (d *Daemon) describe(ctx context.Context) error {
	s := d.State()
	if s.Boot == "" {
		return nil
	}
	meta, err := d.Client().Meta(ctx, s.Prefix)
	if err != nil || meta.Exists() {
		return err
	}
	return d.Client().SetMeta(ctx, meta, shared.Meta{Schema: shared.Schema, ClusterID: s.ClusterID, Epoch: 1, EpochTail: Random()})
}

// Random returns 16 random hexadecimal digits.
func Random() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // crypto/rand never fails
	return hex.EncodeToString(b)
}

// promote makes learners voters, two at a time.
func (d *Daemon) promote(ctx context.Context) error {
	_, judged, err := member.Judged(ctx, d.Client())
	if err != nil {
		return err
	}
	for _, m := range quorum.Promotions(judged) {
		if err := d.Client().Promote(ctx, m.ID); err != nil {
			return err
		}
		d.log.Info("made a learner a voter", "member", m.Name)
	}
	return nil
}

// renew renews the certificates after two thirds of their life. A member signs them itself, also
// after their end. Another host asks a member, which a certificate that has ended does not allow.
func (d *Daemon) renew(ctx context.Context) error {
	s := d.State()
	certPEM, err := d.dir.Read(hostdir.HostCert)
	if err != nil {
		return err
	}
	period, err := cert.PeriodOf(certPEM)
	if err != nil {
		return err
	}
	now := d.now()
	if now.Before(period.RenewAt()) {
		return nil
	}
	if s.Role == wire.RoleClient && period.Expired(now) {
		return fmt.Errorf("the certificate of this host %s; let it join again: volctl cluster join", period.Words(now))
	}

	q, err := NewRequest(d.dir, s.Host)
	if err != nil {
		return err
	}
	a, err := d.newCertificates(ctx, s, q)
	if err != nil {
		return err
	}
	if err := SaveCertificates(d.dir, a); err != nil {
		return err
	}
	d.log.Info("renewed the certificates of this host", "ended", period.End)
	return nil
}

func (d *Daemon) newCertificates(ctx context.Context, s hostdir.State, q join.Request) (join.Answer, error) {
	if s.Role != wire.RoleClient {
		return d.registrar.Sign(q, s.Role, d.now())
	}

	hosts, err := d.Client().Hosts(ctx)
	if err != nil {
		return join.Answer{}, err
	}
	config, err := member.TLS(d.dir.Path(hostdir.CACert), d.dir.Path(hostdir.HostCert), d.dir.Path(hostdir.HostKey))
	if err != nil {
		return join.Answer{}, err
	}
	return join.Renew(ctx, join.Addresses(hosts), config, q)
}

// NewRequest makes a request with the keys of a host. It makes the keys that do not exist.
func NewRequest(d hostdir.Dir, h wire.Host) (join.Request, error) {
	q := join.Request{Host: h, Version: server.Version, Machine: machine.Identity()}
	for _, f := range []struct {
		key string
		csr *[]byte
	}{{hostdir.HostKey, &q.HostCSR}, {hostdir.AgentKey, &q.AgentCSR}} {
		if !d.Has(f.key) {
			key, err := cert.NewKey()
			if err == nil {
				err = d.Write(f.key, key)
			}
			if err != nil {
				return q, err
			}
		}

		key, err := d.Read(f.key)
		if err != nil {
			return q, err
		}
		if *f.csr, err = cert.NewRequest(key, h.Name); err != nil {
			return q, err
		}
	}
	return q, nil
}

// SaveCertificates stores the certificates of an answer.
func SaveCertificates(d hostdir.Dir, a join.Answer) error {
	for _, f := range []struct {
		name string
		data []byte
	}{{hostdir.CACert, a.CACert}, {hostdir.CAKey, a.CAKey}, {hostdir.AgentCert, a.AgentCert}, {hostdir.HostCert, a.HostCert}} {
		if len(f.data) == 0 {
			continue
		}
		if err := d.Write(f.name, f.data); err != nil {
			return err
		}
	}
	return nil
}
