package san

import (
	"net"
	"sync"
	"time"
)

// SAN owns the disks and serves the drivers of all hosts. It is safe for concurrent use.
type SAN struct {
	*fabric
	*faults
	socket *net.UnixListener
	work   sync.WaitGroup // counts the goroutines of connections
	closed chan struct{}
	once   sync.Once

	calls  map[int64]*call // calls in flight, by number; protected by mu
	number int64           // number of the last call; protected by mu
}

// call is a Call of the SAN. Its fields do not change, except held, which SAN.mu protects.
type call struct {
	number         int64
	method, node   string
	volume, target string
	gone           <-chan struct{} // closed when the driver closes its connection
	deadline       time.Time       // zero if there is no deadline
	held           bool
}

// abandoned reports whether the caller has stopped waiting. A stopped driver cannot close its
// connection, so the deadline of the call counts, too.
func (c *call) abandoned() bool {
	select {
	case <-c.gone:
		return true
	default:
		return !c.deadline.IsZero() && time.Now().After(c.deadline)
	}
}

func (c *call) cause() cause { return cause{call: c.number, method: c.method, late: c.abandoned()} }

func (c *call) event(kind Kind) Event {
	return Event{Kind: kind, Call: c.number, Method: c.method, Node: c.node, Volume: c.volume, Target: c.target}
}
