// Package daemon is the running volagent-etcd of one host. On a member it runs etcd, lets hosts
// join, and makes learners voters. On every host it renews the certificates and tells the agent
// which members exist.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/etcd/hostdir"
	"github.com/volagent/volagent/agent/etcd/join"
	"github.com/volagent/volagent/agent/etcd/member"
	"github.com/volagent/volagent/agent/etcd/server"
	"github.com/volagent/volagent/agent/etcd/wire"
	"github.com/volagent/volagent/agent/process"
)

// Run runs volagent-etcd until ctx ends or etcd stops.
func Run(ctx context.Context, dir hostdir.Dir, log hclog.Logger) error {
	unlock, err := dir.Lock()
	if errors.Is(err, hostdir.ErrLocked) {
		return wire.Errorf(api.CodeRefused, "wait for the command, or stop the other process: systemctl stop volagent-etcd",
			"another volagent-etcd or a command of volctl uses %s", dir.Data)
	}
	if err != nil {
		// Without a data directory, the host is in no cluster.
		if _, missing := dir.Load(); missing != nil {
			return missing
		}
		return err
	}
	defer unlock()

	state, err := dir.Load()
	if err != nil {
		return err
	}
	d := &Daemon{dir: dir, log: log, now: time.Now, state: state, said: map[string]string{}}
	if d.client, err = member.Connect(dir, state); err != nil {
		return err
	}
	defer func() { d.Client().Close() }()

	d.registrar = &join.Registrar{Dir: dir, State: d.State, Client: d.Client, Now: d.now}
	if err := d.renew(ctx); err != nil {
		log.Error("cannot renew the certificates of this host", "error", err)
	}
	if state.RunsEtcd() {
		if err := d.start(ctx); err != nil {
			return err
		}
		defer d.stop()
	}

	process.Notify(log, "READY=1")
	return d.work(ctx)
}

// start starts etcd and the join listener.
func (d *Daemon) start(ctx context.Context) error {
	etcd, err := d.enter(ctx)
	if err != nil {
		return err
	}
	d.etcd = etcd
	s := d.State()
	if id := etcd.ClusterID(); s.EtcdCluster != "" && s.EtcdCluster != id {
		etcd.Close()
		return wire.Errorf(api.CodeRefused, "put back the data that belongs to this host, or let it forget the cluster: volctl cluster leave --forget",
			"the data in %s belongs to the etcd cluster %s, and this host to %s", d.dir.Path(hostdir.EtcdDir), id, s.EtcdCluster)
	}

	address := net.JoinHostPort(strings.Trim(server.ListenHost(s), "[]"), strconv.Itoa(s.JoinPort))
	if d.listener, err = join.Listen(address, d.registrar, d.log); err != nil {
		etcd.Close()
		return wire.Errorf(api.CodeRefused, "stop the program that uses the port: ss -lntp", "%v", err)
	}

	d.log.Info("etcd listens", "name", s.Name, "address", s.ClientURL(), "version", server.Version)
	return nil
}

func (d *Daemon) stop() {
	if err := d.listener.Close(); err != nil {
		d.log.Warn("cannot close the join port", "error", err)
	}
	d.etcd.Close()
}

// enter starts etcd. For its first start, etcd needs a list of exactly the members that the cluster
// has. Another host may have joined or left since this host read its list, so enter reads it again.
func (d *Daemon) enter(ctx context.Context) (*server.Server, error) {
	var tried []hostdir.Peer
	for {
		s := d.State()
		etcd, err := server.Start(d.dir, s)
		switch {
		case !errors.Is(err, server.ErrMembers):
			return etcd, err
		case slices.Equal(s.Members, tried):
			return nil, wire.Errorf(api.CodeRefused, "let the host forget the cluster, and join again: volctl cluster leave --forget", "%v", err)
		}

		tried = s.Members
		d.log.Info("etcd does not start with the members that this host knows; it reads them again", "error", err)
		if err := d.findMembers(ctx); err != nil {
			return nil, err
		}
	}
}

// findMembers reads the members of the cluster. It waits until the cluster answers.
func (d *Daemon) findMembers(ctx context.Context) error {
	for {
		peers, err := join.Peers(ctx, d.Client())
		if err == nil {
			return d.keep(func(s *hostdir.State) { s.Members = peers })
		}
		d.say("find the members", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(memberRound):
		}
	}
}

// work does the duties of the host until ctx ends or etcd stops.
func (d *Daemon) work(ctx context.Context) error {
	every := clientRound
	ready, stopped, failed := closed(), (<-chan struct{})(nil), (<-chan error)(nil)
	if d.etcd != nil {
		every, ready, stopped, failed = memberRound, d.etcd.Ready(), d.etcd.Stopped(), d.etcd.Failed()
	} else if life := d.State().Life; life/20 < every {
		every = max(time.Second, life/20)
	}

	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-stopped:
			return d.stoppedError(ctx, errors.New("etcd has stopped by itself"))
		case err := <-failed:
			return d.stoppedError(ctx, fmt.Errorf("etcd has failed: %w", err))
		case <-ready:
			ready = nil // the first round follows at once
			d.log.Info("this host is in the cluster", "cluster", d.State().ClusterID)
		case <-tick.C:
		}

		if ready == nil {
			d.round(ctx)
		} else {
			d.say("renew the certificates", d.renew(ctx))
		}
	}
}

// stoppedError says why etcd has stopped by itself. A member that was removed while it did not run
// learns that only from the others.
func (d *Daemon) stoppedError(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(ctx, roundLimit)
	defer cancel()
	removed := d.etcd.Removed()
	if !removed {
		members, _, certain, lerr := d.Client().Members(ctx)
		removed = lerr == nil && certain && !slices.ContainsFunc(members, func(m member.Member) bool { return m.Peer == d.State().PeerURL() })
	}
	if removed {
		return fmt.Errorf("%w: its member was removed; let the host forget the cluster: volctl cluster leave --forget", ErrLeft)
	}
	return err
}

func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}
