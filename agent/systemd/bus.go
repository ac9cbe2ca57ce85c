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

// Names on the bus; see org.freedesktop.systemd1(5).
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

// answerWithin bounds each query to the bus, and each connection attempt.
const answerWithin = 2 * time.Second

// jobWithin bounds the answer to a request for a job. The answer may have to wait for a manager
// that reloads.
const jobWithin = 10 * time.Second

// Options configures a Bus.
type Options struct {
	Log hclog.Logger // nil: no log
	// Dial connects to the bus of systemd; nil means the system bus.
	Dial func(...dbus.ConnOption) (*dbus.Conn, error)
}

// Bus is a connection to systemd. It connects when it is first needed, and again after the
// connection was lost. Its methods are safe for concurrent use.
type Bus struct {
	log  hclog.Logger
	dial func(...dbus.ConnOption) (*dbus.Conn, error)
	life context.Context // the context of all connections
	end  context.CancelFunc

	dialing chan struct{} // holds one token, held while connecting
	wg      sync.WaitGroup

	mu      sync.Mutex
	conn    *dbus.Conn // nil while there is none
	epoch   uint64     // number of connections so far
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

// Close closes the connection. Units that were started keep running.
func (b *Bus) Close() {
	b.end()
	b.wg.Wait()
}

// Connected reports whether there is a connection, so that signals arrive.
func (b *Bus) Connected() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.conn != nil
}

// Connect makes the connection if there is none, and returns its number. If the number differs from
// an earlier one, changes may have been missed in between.
func (b *Bus) Connect(ctx context.Context) (epoch uint64, err error) {
	if _, err := b.connect(ctx); err != nil {
		return 0, err
	}

	b.mu.Lock()
	defer b.mu.Unlock()

	return b.epoch, nil
}

// connect returns the connection, and makes it if there is none.
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

	// An attempt to connect cannot be cancelled while it blocks on the socket. The next caller then
	// waits for its end.
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

// begin connects, subscribes to signals, and starts to listen to them.
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
		return nil, errors.New("cannot connect to the system bus: it took too long")
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

// subscribe requests the signals about changed units and ended jobs.
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
			// systemd was re-executed: the new process may not know this subscription.
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

// note returns the unit that a signal names, and stores the result of a job. back reports whether
// systemd came back.
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

// unescape turns the last part of a unit's object path into the unit's name. systemd writes every
// byte except letters and digits as _ and two hex digits.
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

// isError reports whether systemd answered with the error of this name.
func isError(err error, name string) bool {
	var e dbus.Error
	return errors.As(err, &e) && e.Name == name
}

// IsInvalid reports whether systemd rejects a unit's name as invalid.
func IsInvalid(err error) bool {
	return isError(err, busIface+".Error.InvalidArgs")
}

// IsAnswer reports whether an error is systemd's own answer. In that case systemd did not do the
// requested action. Otherwise it is unknown whether it did.
func IsAnswer(err error) bool {
	var e dbus.Error
	return errors.As(err, &e) && !strings.HasPrefix(e.Name, busIface+".Error.NoReply") && !strings.HasPrefix(e.Name, busIface+".Error.Timeout")
}
