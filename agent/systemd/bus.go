package systemd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/hashicorp/go-hclog"
)

// The names of systemd on D-Bus (org.freedesktop.systemd1(5)).
const (
	systemdName  = "org.freedesktop.systemd1"
	managerPath  = dbus.ObjectPath("/org/freedesktop/systemd1")
	unitPaths    = "/org/freedesktop/systemd1/unit"
	managerIface = systemdName + ".Manager"
	unitIface    = systemdName + ".Unit"
	serviceIface = systemdName + ".Service"
	propsIface   = "org.freedesktop.DBus.Properties"
	busIface     = "org.freedesktop.DBus"
)

// answerWithin is the time limit of each query to systemd, and of each attempt to connect.
const answerWithin = 2 * time.Second

// jobWithin is the time limit for systemd's answer to a request that creates a job. While systemd
// reloads, it answers later than usual.
const jobWithin = 10 * time.Second

// Options configures a Bus.
type Options struct {
	Log hclog.Logger // nil means that nothing is logged
	// Dial connects to systemd's bus. If Dial is nil, the Bus uses the system bus.
	Dial func(...dbus.ConnOption) (*dbus.Conn, error)
}

// Bus is a connection to systemd. It connects at the first request. After a lost connection, it
// connects again at the next request. Several goroutines may call its methods at the same time.
type Bus struct {
	log  hclog.Logger
	dial func(...dbus.ConnOption) (*dbus.Conn, error)
	life context.Context // the context of all connections
	end  context.CancelFunc

	dialing chan struct{} // contains a value while an attempt to connect runs
	wg      sync.WaitGroup

	mu      sync.Mutex
	conn    *dbus.Conn // nil while the Bus is not connected
	epoch   uint64     // the number of connections so far
	watches map[*Watch]struct{}
	jobs    jobs
}

// New returns a Bus that is not connected yet.
func New(o Options) *Bus {
	b := &Bus{log: o.Log, dial: o.Dial, dialing: make(chan struct{}, 1), watches: map[*Watch]struct{}{}}
	if b.log == nil {
		b.log = hclog.NewNullLogger()
	}

	if b.dial == nil {
		b.dial = func(opts ...dbus.ConnOption) (*dbus.Conn, error) {
			if !Booted() {
				return nil, ErrNone
			}

			return dbus.ConnectSystemBus(opts...)
		}
	}

	b.life, b.end = context.WithCancel(context.Background())
	return b
}

// Close closes the connection. The started units keep running.
func (b *Bus) Close() {
	b.end()
	b.wg.Wait()
}

// Connected reports whether the Bus is connected, so that it receives signals.
func (b *Bus) Connected() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.conn != nil
}

// Connect connects if the Bus is not connected. It returns the number of the connection. If this
// number differs from the number that an earlier call returned, the Bus may have missed changes
// between the two calls.
func (b *Bus) Connect(ctx context.Context) (epoch uint64, err error) {
	if _, err := b.connect(ctx); err != nil {
		return 0, err
	}

	b.mu.Lock()
	defer b.mu.Unlock()

	return b.epoch, nil
}

// connect returns the current connection, or makes a new one.
func (b *Bus) connect(ctx context.Context) (*dbus.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()

	select {
	case b.dialing <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("cannot connect to systemd: %w", ctx.Err())
	}

	b.mu.Lock()
	conn := b.conn
	b.mu.Unlock()
	if conn != nil && conn.Connected() {
		<-b.dialing
		return conn, nil
	}

	// An attempt to connect cannot be cancelled while it blocks on the socket. If the caller gives
	// up, the attempt continues, and the next caller waits until it ends.
	type result struct {
		conn *dbus.Conn
		err  error
	}

	done := make(chan result, 1)
	go func() {
		defer func() { <-b.dialing }()
		conn, err := b.begin()
		done <- result{conn, err}
	}()

	select {
	case r := <-done:
		return r.conn, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("cannot connect to systemd: %w", ctx.Err())
	}
}

// begin connects, subscribes to signals, and starts to process them.
func (b *Bus) begin() (*dbus.Conn, error) {
	ctx, cancel := context.WithCancel(b.life)
	limit := time.AfterFunc(answerWithin, cancel)
	conn, err := b.dial(dbus.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, fmt.Errorf("cannot connect to the system bus: %w", err)
	}

	signals := make(chan *dbus.Signal, 128)
	conn.Signal(signals)
	if err := subscribe(ctx, conn); err != nil {
		cancel()
		return nil, fmt.Errorf("cannot subscribe to systemd's signals: %w", err)
	}
	if !limit.Stop() {
		cancel()
		return nil, errors.New("cannot connect to the system bus: timed out")
	}

	b.mu.Lock()
	defer b.mu.Unlock()

	if err := b.life.Err(); err != nil {
		cancel()
		return nil, err
	}

	b.conn = conn
	b.epoch++
	b.wg.Go(func() {
		defer cancel()
		b.listen(conn, signals)
	})

	return conn, nil
}

// subscribe requests the signals about changed units, ended jobs, and a restart of systemd.
func subscribe(ctx context.Context, conn *dbus.Conn) error {
	for _, match := range [][]dbus.MatchOption{
		{
			dbus.WithMatchSender(systemdName), dbus.WithMatchInterface(propsIface), dbus.WithMatchMember("PropertiesChanged"),
			dbus.WithMatchPathNamespace(unitPaths), dbus.WithMatchArg(0, unitIface),
		},
		{dbus.WithMatchSender(systemdName), dbus.WithMatchInterface(managerIface), dbus.WithMatchMember("UnitRemoved")},
		{dbus.WithMatchSender(systemdName), dbus.WithMatchInterface(managerIface), dbus.WithMatchMember("JobRemoved")},
		{dbus.WithMatchSender(busIface), dbus.WithMatchInterface(busIface), dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, systemdName)},
	} {
		if err := conn.AddMatchSignalContext(ctx, match...); err != nil {
			return err
		}
	}

	return manager(ctx, conn, "Subscribe").Err
}

func manager(ctx context.Context, conn *dbus.Conn, method string, args ...any) *dbus.Call {
	return conn.Object(systemdName, managerPath).CallWithContext(ctx, managerIface+"."+method, 0, args...)
}

// listen processes signals until the connection ends.
func (b *Bus) listen(conn *dbus.Conn, signals <-chan *dbus.Signal) {
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()

		if b.conn == conn {
			b.conn = nil
		}

		b.jobs.lost()
		b.tell("")
	}()

	for s := range signals {
		name, back := b.note(s)
		if back {
			// systemd was re-executed, and the new process may not know this subscription. So
			// subscribe again.
			ctx, cancel := context.WithTimeout(conn.Context(), answerWithin)
			if err := manager(ctx, conn, "Subscribe").Err; err != nil {
				b.log.Debug("cannot subscribe again", "error", err)
			}

			cancel()
		}

		if name != "" || back {
			b.mu.Lock()
			b.tell(name)
			b.mu.Unlock()
		}
	}
}

// note returns the name of the unit that a signal concerns. If the signal contains the result of a
// job, note stores the result. The return value back is true if the signal reports that systemd has
// been restarted.
func (b *Bus) note(s *dbus.Signal) (name string, back bool) {
	arg := func(i int) string {
		if i >= len(s.Body) {
			return ""
		}

		text, _ := s.Body[i].(string)
		return text
	}

	switch s.Name {
	case propsIface + ".PropertiesChanged":
		if label, ok := strings.CutPrefix(string(s.Path), unitPaths+"/"); ok {
			return unescape(label), false
		}

	case managerIface + ".UnitRemoved":
		return arg(0), false
	case managerIface + ".JobRemoved":
		if len(s.Body) > 1 {
			if job, ok := s.Body[1].(dbus.ObjectPath); ok {
				b.mu.Lock()
				b.jobs.ended(job, arg(3))
				b.mu.Unlock()
			}
		}

		return arg(2), false

	case busIface + ".NameOwnerChanged":
		return "", arg(2) != ""
	}

	return "", false
}

// unescape converts the last element of a unit's object path to the name of the unit. systemd
// encodes every byte except letters and digits as "_" and two hex digits.
func unescape(label string) string {
	var b strings.Builder
	for i := 0; i < len(label); i++ {
		if label[i] == '_' && i+2 < len(label) {
			if c, err := strconv.ParseUint(label[i+1:i+3], 16, 8); err == nil {
				b.WriteByte(byte(c))
				i += 2
				continue
			}
		}

		b.WriteByte(label[i])
	}

	return b.String()
}

// isError reports whether systemd answered with the D-Bus error of the given name.
func isError(err error, name string) bool {
	var e dbus.Error
	return errors.As(err, &e) && e.Name == name
}

// IsInvalid reports whether systemd refused a unit's name as invalid.
func IsInvalid(err error) bool {
	return isError(err, busIface+".Error.InvalidArgs")
}

// IsAnswer reports whether an error is an answer of systemd. If it is one, systemd did not carry
// out the request. Otherwise it is unknown whether systemd carried out the request.
func IsAnswer(err error) bool {
	var e dbus.Error
	return errors.As(err, &e) && !strings.HasPrefix(e.Name, busIface+".Error.NoReply") && !strings.HasPrefix(e.Name, busIface+".Error.Timeout")
}

// errLost is returned to a caller that waits for a job when the connection is lost.
var errLost = errors.New("the connection to the system bus was lost")

// jobs stores the results of jobs until their callers receive them.
type jobs struct {
	// the number of job requests that systemd has not answered yet
	asking int
	// results that arrived before systemd answered the request for the job
	early map[dbus.ObjectPath]string
	// for each job, the channel of the caller that waits; closed if the connection is lost
	waits map[dbus.ObjectPath]chan string
}

// ended passes the result of a job to the caller that waits for it. If the caller does not know the
// name of its job yet, ended stores the result.
func (j *jobs) ended(job dbus.ObjectPath, result string) {
	if ch, ok := j.waits[job]; ok {
		ch <- result
		delete(j.waits, job)
	} else if j.asking > 0 {
		j.early[job] = result
	}
}

// lost ends all waits after the connection was lost.
func (j *jobs) lost() {
	for job, ch := range j.waits {
		close(ch)
		delete(j.waits, job)
	}
}

// Watch reports which units have changed.
type Watch struct {
	// C receives one message after one or more changes. The receiver then calls Take, which returns
	// the changed units.
	C    chan struct{}
	b    *Bus
	name string // the watched unit; empty means all units

	// Bus.mu guards the fields below.
	names map[string]bool
	all   bool
}

// tell informs the watches of the named unit, or all watches if name is empty. The caller must hold
// b.mu.
func (b *Bus) tell(name string) {
	for w := range b.watches {
		if name != "" && w.name != "" && w.name != name {
			continue
		}
		if name == "" {
			w.all = true
		} else {
			w.names[name] = true
		}

		select {
		case w.C <- struct{}{}:
		default:
		}
	}
}
