package owner

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
)

// Names on the bus, see org.freedesktop.systemd1(5).
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

// answerWithin bounds each question to the bus, and each connect.
const answerWithin = 2 * time.Second

// connect returns the connection, after making it if there is none.
func (u *units) connect(ctx context.Context) (*dbus.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	select {
	case u.dialing <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("cannot connect to systemd: %w", ctx.Err())
	}
	u.mu.Lock()
	conn, life := u.conn, u.ctx
	u.mu.Unlock()
	if conn != nil && conn.Connected() {
		<-u.dialing
		return conn, nil
	}
	// Connecting cannot be cancelled while it blocks on the socket: then the next
	// caller waits for its end.
	type result struct {
		conn *dbus.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		defer func() { <-u.dialing }()
		conn, err := u.begin(life)
		done <- result{conn, err}
	}()
	select {
	case r := <-done:
		return r.conn, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("cannot connect to systemd: %w", ctx.Err())
	}
}

// begin connects, subscribes, and has signals listened to.
func (u *units) begin(life context.Context) (*dbus.Conn, error) {
	ctx, cancel := context.WithCancel(life)
	limit := time.AfterFunc(answerWithin, cancel)
	conn, err := u.dial(dbus.WithContext(ctx))
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
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := life.Err(); err != nil {
		cancel()
		return nil, err
	}
	u.conn = conn
	u.wg.Go(func() {
		defer cancel()
		u.listen(conn, signals)
	})
	return conn, nil
}

// subscribe asks for the signals that tell of changed units.
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

// listen asks again about units that signals name, until the connection ends.
func (u *units) listen(conn *dbus.Conn, signals <-chan *dbus.Signal) {
	defer u.wake()
	defer func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.conn == conn {
			u.conn = nil
		}
	}()
	for s := range signals {
		names := map[string]bool{}
		back := note(s, names)
		for len(signals) > 0 { // several changes of one unit cost one question
			if s, ok := <-signals; ok {
				back = note(s, names) || back
			}
		}
		if back {
			// Another systemd process, after a re-execution: it may not know us.
			ctx, cancel := context.WithTimeout(conn.Context(), answerWithin)
			if err := manager(ctx, conn, "Subscribe").Err; err != nil {
				u.log.Debug("cannot subscribe again", "error", err)
			}
			cancel()
		}
		for _, name := range u.names(false) {
			if (back || names[name]) && conn.Connected() {
				u.askAll(conn.Context(), []string{name})
			}
		}
	}
}

// note adds the unit that a signal names, and reports whether systemd came back.
func note(s *dbus.Signal, names map[string]bool) (back bool) {
	switch s.Name {
	case propsIface + ".PropertiesChanged":
		if label, ok := strings.CutPrefix(string(s.Path), unitPaths+"/"); ok {
			names[unescape(label)] = true
		}
	case managerIface + ".UnitRemoved":
		if len(s.Body) > 0 {
			if name, ok := s.Body[0].(string); ok {
				names[name] = true
			}
		}
	case managerIface + ".JobRemoved":
		if len(s.Body) > 2 {
			if name, ok := s.Body[2].(string); ok {
				names[name] = true
			}
		}
	case busIface + ".NameOwnerChanged":
		if len(s.Body) > 2 {
			owner, ok := s.Body[2].(string)
			return ok && owner != ""
		}
	}
	return false
}

// unescape turns the last part of a unit's object path into its name: systemd
// writes every byte but letters and digits as _ and two hex digits.
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

// state asks systemd about a unit. One that is not loaded is the zero value.
func state(ctx context.Context, conn *dbus.Conn, name string) (unitState, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	var path dbus.ObjectPath
	err := manager(ctx, conn, "GetUnit", name).Store(&path)
	if isError(err, systemdName+".NoSuchUnit") {
		return unitState{}, nil
	}
	if err != nil {
		return unitState{}, fmt.Errorf("cannot ask systemd about unit %q: %w", name, err)
	}
	object := conn.Object(systemdName, path)
	var props map[string]dbus.Variant
	if err := object.CallWithContext(ctx, propsIface+".GetAll", 0, unitIface).Store(&props); err != nil {
		return unitState{}, fmt.Errorf("cannot ask systemd about unit %q: %w", name, err)
	}
	s := unitState{ID: text(props["Id"]), Active: text(props["ActiveState"]), Sub: text(props["SubState"])}
	if id, ok := props["InvocationID"].Value().([]byte); ok {
		s.Invocation = hex.EncodeToString(id)
	}
	if s.ID == "" || s.Active == "" {
		return unitState{}, fmt.Errorf("cannot ask systemd about unit %q: the answer has no state", name)
	}
	if strings.HasSuffix(s.ID, ".service") {
		var pid dbus.Variant
		if err := object.CallWithContext(ctx, propsIface+".Get", 0, serviceIface, "MainPID").Store(&pid); err == nil {
			n, _ := pid.Value().(uint32)
			s.MainPID = int(n)
		}
	}
	return s, nil
}

func text(v dbus.Variant) string {
	s, _ := v.Value().(string)
	return s
}

// isError reports whether systemd answered with an error of a name.
func isError(err error, name string) bool {
	var e dbus.Error
	return errors.As(err, &e) && e.Name == name
}

// isInvalid reports whether systemd cannot make sense of a unit's name.
func isInvalid(err error) bool {
	return isError(err, busIface+".Error.InvalidArgs")
}
