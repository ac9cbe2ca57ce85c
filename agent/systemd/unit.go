package systemd

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/godbus/dbus/v5"
)

// Unit is the state of a unit as systemd reports it. The zero value stands for a unit that is not
// loaded.
type Unit struct {
	ID         string // its real name, which may differ from the name in the query
	Invocation string
	Load       string // LoadState: loaded, not-found, masked, bad-setting …
	Active     string // ActiveState: active, activating, inactive …
	Sub        string // SubState
	MainPID    int
	Queued     bool // systemd has a job for it, which may not have begun
}

// Restarting reports whether systemd is about to restart the unit by itself.
func (u Unit) Restarting() bool {
	return u.Active == "activating" && (u.Sub == "auto-restart" || u.Sub == "auto-restart-queued")
}

// Down reports whether no process of the unit runs, and systemd does not start one.
func (u Unit) Down() bool {
	return u.Active == "" || u.Active == "inactive" || u.Active == "failed"
}

// Over reports whether all processes of the invocation have ended. That includes a unit that waits
// for an automatic restart, because the restart is a new invocation.
func (u Unit) Over() bool { return u.Down() || u.Restarting() }

// Service is the state of a service as systemd reports it.
type Service struct {
	Unit
	Type     string // simple, notify, forking …
	Result   string // success, exit-code, signal, start-limit-hit …
	Restarts int    // automatic restarts by systemd since the last explicit start
	// The main process that runs now, or ran last.
	ExecPID    int
	ExecCode   int // one of CLD_*: 1 exited, 2 killed, 3 dumped core; 0 while it runs
	ExecStatus int // exit status or signal
}

// Unit returns the state of a unit that may not be loaded.
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

// GoesDown reports whether the host is going down. Power-off, reboot and halt all go through
// shutdown.target (systemd.special(7)). systemd has a job for it from the first moment.
func (b *Bus) GoesDown(ctx context.Context) (bool, error) {
	u, err := b.Unit(ctx, "shutdown.target")
	return u.Queued || u.Active == "active" || u.Active == "activating", err
}

// Service returns the state of a service. If the service is not loaded, load decides: either
// Service loads it, or returns the zero value.
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

	// The two queries happen at different moments. Their answers count if the unit was the same
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

// service reads the properties that services have.
func service(u Unit, props map[string]dbus.Variant) Service {
	u.MainPID = number(props["MainPID"])
	return Service{
		Unit: u, Type: text(props["Type"]), Result: text(props["Result"]), Restarts: number(props["NRestarts"]),
		ExecPID: number(props["ExecMainPID"]), ExecCode: number(props["ExecMainCode"]), ExecStatus: number(props["ExecMainStatus"]),
	}
}

// object returns the bus object of a unit; nil if the unit is not loaded.
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

// unit reads the properties that all kinds of units have.
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
		return Unit{}, fmt.Errorf("cannot ask systemd about unit %q: the answer has no state", name)
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
