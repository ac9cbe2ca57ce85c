package daemon

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/etcd/hostdir"
	"github.com/volagent/volagent/agent/etcd/join"
	"github.com/volagent/volagent/agent/etcd/member"
	"github.com/volagent/volagent/agent/etcd/server"
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

// keep changes the state of the host and stores it. The client is renewed if other members answer
// now. If keep fails, neither the state nor the client changes, so the next round tries again.
func (d *Daemon) keep(change func(*hostdir.State)) error {
	d.mu.Lock()
	defer d.mu.Unlock()

	state, client := d.state, d.client
	change(&state)
	renewed := !slices.Equal(state.Endpoints(), d.state.Endpoints())
	if renewed {
		var err error
		if client, err = member.Connect(d.dir, state); err != nil {
			return err
		}
	}
	if err := d.dir.Save(state); err != nil {
		if renewed {
			client.Close()
		}
		return err
	}

	if renewed {
		time.AfterFunc(roundLimit, d.client.Close) // a request of a host that joins may still use it
	}
	d.state, d.client = state, client
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
