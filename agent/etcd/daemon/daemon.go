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
	"sync"
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

const (
	// memberRound is the interval of the duties of a member.
	memberRound = 2 * time.Second

	// clientRound is the longest interval of the duties of a client. A cluster may have a thousand
	// clients.
	clientRound = 5 * time.Minute

	// roundLimit is the time limit of one round of duties.
	roundLimit = 30 * time.Second
)

// ErrLeft means that this host is no longer a member. A restart does not help.
var ErrLeft = errors.New("this host has left the cluster")

// Daemon is the running volagent-etcd.
type Daemon struct {
	dir hostdir.Dir
	log hclog.Logger
	now func() time.Time

	etcd      *server.Server // nil on a client
	registrar *join.Registrar
	listener  *join.Listener // nil on a client

	mu     sync.Mutex
	state  hostdir.State
	client *member.Client

	said map[string]string // the last error of each duty, so that it is logged once
}

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

// State returns the newest state of this host.
func (d *Daemon) State() hostdir.State {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state
}

// Client returns the client for the members that this host knows now.
func (d *Daemon) Client() *member.Client {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.client
}

// start starts etcd and the join listener.
func (d *Daemon) start(ctx context.Context) error {
	if !server.Initialised(d.dir) && d.state.Boot == "" {
		if err := d.findMembers(ctx); err != nil {
			return err
		}
	}

	s := d.State()
	etcd, err := server.Start(d.dir, s)
	if err != nil {
		return err
	}
	d.etcd = etcd
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

// findMembers reads the members before etcd starts for the first time, because etcd must name all of
// them. It waits until the cluster answers.
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

// keep changes the state of the host and stores it. The client is renewed if other members answer
// now.
func (d *Daemon) keep(change func(*hostdir.State)) error {
	d.mu.Lock()
	defer d.mu.Unlock()

	old := strings.Join(d.state.Endpoints(), " ")
	change(&d.state)
	if err := d.dir.Save(d.state); err != nil {
		return err
	}
	if strings.Join(d.state.Endpoints(), " ") == old {
		return nil
	}

	client, err := member.Connect(d.dir, d.state)
	if err != nil {
		return err
	}
	before := d.client
	time.AfterFunc(roundLimit, before.Close) // a request of a host that joins may still use it
	d.client = client
	return nil
}

// say logs the error of a duty, unless it logged the same error last. A nil error means success.
func (d *Daemon) say(duty string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	was := d.said[duty]
	switch text {
	case was:
		return
	case "":
		d.log.Info("can "+duty+" again", "before", was)
	default:
		d.log.Warn("cannot "+duty+"; it is tried again", "error", text)
	}
	d.said[duty] = text
}

func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}
