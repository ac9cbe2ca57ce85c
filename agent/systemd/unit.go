package systemd

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/godbus/dbus/v5"
)

// Unit is the state of a unit, as systemd reports it. A unit that is not loaded has the zero value.
type Unit struct {
	ID         string // the primary name of the unit; a query may use another name
	Invocation string
	Load       string // LoadState: loaded, not-found, masked, bad-setting …
	Active     string // ActiveState: active, activating, inactive …
	Sub        string // SubState: running, dead, auto-restart …
	MainPID    int
	Queued     bool // systemd has a job for the unit, even if the job has not begun
}

// Restarting reports whether systemd is about to restart the unit automatically.
func (u Unit) Restarting() bool {
	return u.Active == "activating" && (u.Sub == "auto-restart" || u.Sub == "auto-restart-queued")
}

// Down reports whether the unit has no running process and systemd is not about to start the unit.
func (u Unit) Down() bool {
	return u.Active == "" || u.Active == "inactive" || u.Active == "failed"
}

// Over reports whether all processes of the unit's current invocation have ended. Over also returns
// true while the unit waits for an automatic restart, because the restart is a new invocation.
func (u Unit) Over() bool { return u.Down() || u.Restarting() }

// Service is the state of a service, as systemd reports it.
type Service struct {
	Unit
	Type     string // simple, notify, forking …
	Result   string // success, exit-code, signal, start-limit-hit …
	Restarts int    // automatic restarts by systemd since the last explicit start
	// The fields below describe the main process: the running process, or otherwise the process
	// that ran last.
	ExecPID    int
	ExecCode   int // a CLD_ code: 1 exited, 2 killed, 3 dumped core; 0 while the process runs
	ExecStatus int // exit status, or number of the signal that killed the process
}

// Unit returns the state of a unit. If the unit is not loaded, it returns the zero value.
func (b *Bus) Unit(ctx context.Context, name string) (Unit, error) {
	conn, err := b.connect(ctx)
	if err != nil {
		return Unit{}, err
	}

	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()

	object, err := b.object(ctx, conn, "GetUnit", name)
	if object == nil || err != nil {
		return Unit{}, err
	}

	u, err := unit(ctx, object, name)
	if err == nil && strings.HasSuffix(u.ID, ".service") {
		var pid dbus.Variant
		if err := object.CallWithContext(ctx, propsIface+".Get", 0, serviceIface, "MainPID").Store(&pid); err == nil {
			u.MainPID = number(pid)
		}
	}

	return u, err
}

// GoesDown reports whether the host is shutting down. Power-off, reboot and halt all activate
// shutdown.target (systemd.special(7)). systemd queues the job for it as soon as the shutdown
// begins.
func (b *Bus) GoesDown(ctx context.Context) (bool, error) {
	u, err := b.Unit(ctx, "shutdown.target")
	return u.Queued || u.Active == "active" || u.Active == "activating", err
}

// Service returns the state of a service. If the service is not loaded, Service loads it if the
// argument load is true. Otherwise it returns the zero value.
func (b *Bus) Service(ctx context.Context, name string, load bool) (Service, error) {
	conn, err := b.connect(ctx)
	if err != nil {
		return Service{}, err
	}

	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()

	how := "GetUnit"
	if load {
		how = "LoadUnit"
	}

	object, err := b.object(ctx, conn, how, name)
	if object == nil || err != nil {
		return Service{}, err
	}

	// The properties of the unit and of the service need separate queries, and the state may change
	// between the queries. Service therefore repeats the queries until the unit's state is the same
	// before and after the query of the service.
	u, err := unit(ctx, object, name)
	for err == nil {
		var props map[string]dbus.Variant
		if err = object.CallWithContext(ctx, propsIface+".GetAll", 0, serviceIface).Store(&props); err != nil {
			return Service{}, fmt.Errorf("cannot ask systemd about unit %q: %w", name, err)
		}

		before := u
		if u, err = unit(ctx, object, name); err == nil && u == before {
			return service(u, props), nil
		}
	}

	return Service{}, err
}

// service adds the properties that only services have to the state u of a unit.
func service(u Unit, props map[string]dbus.Variant) Service {
	u.MainPID = number(props["MainPID"])
	return Service{
		Unit: u, Type: text(props["Type"]), Result: text(props["Result"]), Restarts: number(props["NRestarts"]),
		ExecPID: number(props["ExecMainPID"]), ExecCode: number(props["ExecMainCode"]), ExecStatus: number(props["ExecMainStatus"]),
	}
}

// object returns the D-Bus object of a unit. It returns nil if the unit is not loaded.
func (b *Bus) object(ctx context.Context, conn *dbus.Conn, how, name string) (dbus.BusObject, error) {
	var path dbus.ObjectPath
	err := manager(ctx, conn, how, name).Store(&path)
	if isError(err, systemdName+".NoSuchUnit") {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot ask systemd about unit %q: %w", name, err)
	}

	return conn.Object(systemdName, path), nil
}

// unit reads the properties that units of all types have.
func unit(ctx context.Context, object dbus.BusObject, name string) (Unit, error) {
	var props map[string]dbus.Variant
	if err := object.CallWithContext(ctx, propsIface+".GetAll", 0, unitIface).Store(&props); err != nil {
		return Unit{}, fmt.Errorf("cannot ask systemd about unit %q: %w", name, err)
	}

	u := Unit{ID: text(props["Id"]), Load: text(props["LoadState"]), Active: text(props["ActiveState"]), Sub: text(props["SubState"])}
	if id, ok := props["InvocationID"].Value().([]byte); ok {
		u.Invocation = hex.EncodeToString(id)
	}

	if job, ok := props["Job"].Value().([]any); ok && len(job) > 0 {
		id, _ := job[0].(uint32)
		u.Queued = id != 0
	}

	if u.ID == "" || u.Active == "" {
		return Unit{}, fmt.Errorf("cannot ask systemd about unit %q: the answer contains no state", name)
	}

	return u, nil
}

func text(v dbus.Variant) string {
	s, _ := v.Value().(string)
	return s
}

func number(v dbus.Variant) int {
	switch n := v.Value().(type) {
	case uint32:
		return int(n)
	case int32:
		return int(n)
	default:
		return 0
	}
}
