package systemd

import (
	"context"
	"fmt"
	"os"

	"github.com/godbus/dbus/v5"
)

// JobDone is the result of a job that succeeded. The other results are failed, canceled, timeout,
// dependency and skipped (org.freedesktop.systemd1(5)).
const JobDone = "done"

// Start starts a unit and waits for the result of the job.
func (b *Bus) Start(ctx context.Context, name string) (result string, err error) {
	return b.job(ctx, "start unit "+name, "StartUnit", name, "replace")
}

// Stop stops a unit and waits until it has stopped. A unit that is not loaded counts as stopped.
func (b *Bus) Stop(ctx context.Context, name string) error {
	_, err := b.job(ctx, "stop unit "+name, "StopUnit", name, "replace")
	if isError(err, systemdName+".NoSuchUnit") {
		return nil
	}
	return err
}

// Transient describes a service that systemd runs without a unit file.
type Transient struct {
	Name        string
	Description string
	Slice       string
	Argv        []string // command line; the first element is an absolute path
	// Stdin and Output become the standard input and output of the process. systemd keeps both open
	// while the unit runs.
	Stdin, Output *os.File
	Errors        *os.File // the standard error; nil means the same file as Output
	OOMScore      int
	NoFile        uint64 // hard limit on open files; 0 means systemd's default
	// hard limit on the size of core dumps, in bytes; the soft limit is 0, because plugins hold
	// secrets
	Core uint64
	// Command states that the service is a command that soon ends by itself. systemd then treats
	// every exit status as success. It writes neither the status nor the start to the journal.
	Command bool
}

// statuses is the D-Bus type of the property SuccessExitStatus.
type statuses struct{ Exits, Signals []int32 }

// anyStatus returns all exit statuses of a process.
func anyStatus() statuses {
	all := statuses{Signals: []int32{}}
	for status := range int32(256) {
		all.Exits = append(all.Exits, status)
	}
	return all
}

const warning = 4 // LOG_WARNING in syslog(3)

// usualNoFile is the soft limit on open files. A higher soft limit would break programs that use
// select(2), which cannot handle larger descriptors.
const usualNoFile = 1024

// command is the D-Bus type of the property ExecStart.
type command struct {
	Path   string
	Argv   []string
	Ignore bool
}

type property struct {
	Name  string
	Value dbus.Variant
}

type auxiliary struct {
	Name  string
	Props []property
}

// StartTransient starts a service in a slice, and waits until systemd has executed its command.
// While the slice exists, the service does not end because of a shutdown, an isolation or the stop
// of another unit. The service stays loaded, with its result, until the connection ends or the
// caller calls Unref. Afterwards, systemd unloads the service when it has ended.
func (b *Bus) StartTransient(ctx context.Context, t Transient) (result string, err error) {
	errs := t.Errors
	if errs == nil {
		errs = t.Output
	}

	props := []property{
		{"Description", dbus.MakeVariant(t.Description)},
		{"Slice", dbus.MakeVariant(t.Slice)},
		// With the type exec, the job fails if systemd cannot execute the command.
		{"Type", dbus.MakeVariant("exec")},
		{"ExecStart", dbus.MakeVariant([]command{{t.Argv[0], t.Argv, false}})},
		{"StandardInputFileDescriptor", dbus.MakeVariant(dbus.UnixFD(t.Stdin.Fd()))},
		{"StandardOutputFileDescriptor", dbus.MakeVariant(dbus.UnixFD(t.Output.Fd()))},
		{"StandardErrorFileDescriptor", dbus.MakeVariant(dbus.UnixFD(errs.Fd()))},
		// A process that outlives the main process may serve a mount, so systemd must not kill it.
		{"KillMode", dbus.MakeVariant("process")},
		{"SendSIGKILL", dbus.MakeVariant(false)},
		{"OOMPolicy", dbus.MakeVariant("continue")},
		{"Restart", dbus.MakeVariant("no")},
		{"CollectMode", dbus.MakeVariant("inactive-or-failed")},
		{"AddRef", dbus.MakeVariant(true)},
		{"DefaultDependencies", dbus.MakeVariant(false)},
		{"IgnoreOnIsolate", dbus.MakeVariant(true)},
		{"IgnoreSIGPIPE", dbus.MakeVariant(false)},
		{"OOMScoreAdjust", dbus.MakeVariant(int32(t.OOMScore))},
	}

	// The first property of each pair sets both the hard and the soft limit, so it must come before
	// the property that sets the soft limit.
	props = append(props, property{"LimitCORE", dbus.MakeVariant(t.Core)}, property{"LimitCORESoft", dbus.MakeVariant(uint64(0))})
	if t.Command {
		props = append(props, property{"SuccessExitStatus", dbus.MakeVariant(anyStatus())}, property{"LogLevelMax", dbus.MakeVariant(int32(warning))})
	}

	if t.NoFile > 0 {
		props = append(props, property{"LimitNOFILE", dbus.MakeVariant(t.NoFile)}, property{"LimitNOFILESoft", dbus.MakeVariant(min(t.NoFile, usualNoFile))})
	}

	return b.job(ctx, "start service "+t.Name, "StartTransientUnit", t.Name, "fail", props, []auxiliary{})
}

// Ref keeps a unit loaded, with its result, until Unref is called or the connection ends. It
// reports whether the unit exists.
func (b *Bus) Ref(ctx context.Context, name string) (bool, error) {
	err := b.call(ctx, "RefUnit", name)
	if isError(err, systemdName+".NoSuchUnit") {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot keep unit %q loaded: %w", name, err)
	}

	return true, nil
}

// Unref undoes Ref, so that systemd can unload the unit.
func (b *Bus) Unref(ctx context.Context, name string) error {
	if err := b.call(ctx, "UnrefUnit", name); err != nil {
		return fmt.Errorf("cannot let systemd unload unit %q: %w", name, err)
	}
	return nil
}

func (b *Bus) call(ctx context.Context, method, name string) error {
	conn, err := b.connect(ctx)
	if err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()

	return manager(ctx, conn, method, name).Err
}

// job calls a D-Bus method that creates a job. It waits until the job has a result or ctx ends.
func (b *Bus) job(ctx context.Context, what, method string, args ...any) (string, error) {
	conn, err := b.connect(ctx)
	if err != nil {
		return "", err
	}

	b.mu.Lock()
	b.jobs.asking++
	if b.jobs.early == nil {
		b.jobs.early, b.jobs.waits = map[dbus.ObjectPath]string{}, map[dbus.ObjectPath]chan string{}
	}

	b.mu.Unlock()

	asked, cancel := context.WithTimeout(ctx, jobWithin)
	defer cancel()

	var job dbus.ObjectPath
	err = manager(asked, conn, method, args...).Store(&job)
	result, wait := b.jobMade(conn, job, err)
	if err != nil {
		return "", fmt.Errorf("cannot %s: %w", what, err)
	}
	if wait == nil {
		return result, nil
	}

	select {
	case result, ok := <-wait:
		if !ok {
			return "", fmt.Errorf("cannot tell whether systemd could %s: %w", what, errLost)
		}

		return result, nil

	case <-ctx.Done():
		b.mu.Lock()
		delete(b.jobs.waits, job)
		b.mu.Unlock()
		return "", fmt.Errorf("cannot %s: %w", what, ctx.Err())
	}
}

// jobMade is called when systemd has answered a request for a job. If the result of the job has
// already arrived, jobMade returns the result. Otherwise it returns a channel that will receive the
// result.
func (b *Bus) jobMade(conn *dbus.Conn, job dbus.ObjectPath, failed error) (result string, wait chan string) {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.jobs.asking--
	result, ended := b.jobs.early[job]
	if b.jobs.asking == 0 {
		clear(b.jobs.early)
	}

	if failed != nil || ended {
		return result, nil
	}

	wait = make(chan string, 1)
	if b.conn != conn {
		close(wait)
		return "", wait
	}

	b.jobs.waits[job] = wait
	return "", wait
}
