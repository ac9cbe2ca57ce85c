package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/godbus/dbus/v5"
)

// JobDone is the result of a job that did what it was for; others are failed,
// canceled, timeout, dependency, skipped.
const JobDone = "done"

// errLost is the end of a wait for a job whose result nobody heard.
var errLost = errors.New("the connection to the system bus was lost")

// jobs are the jobs whose end somebody waits for.
type jobs struct {
	asking int                             // calls whose answer, which names the job, is under way
	early  map[dbus.ObjectPath]string      // results that came before that answer
	waits  map[dbus.ObjectPath]chan string // closed if the connection is lost
}

// ended takes in a result.
func (j *jobs) ended(job dbus.ObjectPath, result string) {
	if ch, ok := j.waits[job]; ok {
		ch <- result
		delete(j.waits, job)
	} else if j.asking > 0 {
		j.early[job] = result
	}
}

// lost ends all waits.
func (j *jobs) lost() {
	for job, ch := range j.waits {
		close(ch)
		delete(j.waits, job)
	}
}

// Start starts a unit and waits for the result of that.
func (b *Bus) Start(ctx context.Context, name string) (result string, err error) {
	return b.job(ctx, "start unit "+name, "StartUnit", name, "replace")
}

// Stop stops a unit and waits for its end. One that is not loaded is stopped.
func (b *Bus) Stop(ctx context.Context, name string) error {
	_, err := b.job(ctx, "stop unit "+name, "StopUnit", name, "replace")
	if isError(err, systemdName+".NoSuchUnit") {
		return nil
	}
	return err
}

// Transient is a service that has no file.
type Transient struct {
	Name        string
	Description string
	Slice       string
	Argv        []string // the first is an absolute path
	// Stdin and Output are what the process gets for its own. systemd keeps them
	// open while the unit runs.
	Stdin, Output *os.File
	Errors        *os.File // for its standard error; nil is Output
	OOMScore      int
	NoFile        uint64 // hard limit of open files; 0 is systemd's own
	Core          uint64 // hard limit of core dumps, in bytes; the soft one is 0, because plugins hold secrets
	// Command: it ends by itself soon, with a status that is not systemd's to judge, and
	// neither that nor its start is told in the journal.
	Command bool
}

// statuses is systemd's type of SuccessExitStatus=.
type statuses struct{ Exits, Signals []int32 }

// anyStatus are all that a process can exit with.
func anyStatus() statuses {
	all := statuses{Signals: []int32{}}
	for status := range int32(256) {
		all.Exits = append(all.Exits, status)
	}
	return all
}

const warning = 4 // LOG_WARNING of syslog(3)

// usualNoFile is the soft limit of open files: select(2) takes no more.
const usualNoFile = 1024

// command is systemd's type of ExecStart=.
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

// StartTransient starts a service in a slice, which no shutdown, isolation or stop of
// another unit ends as long as the slice stays, and waits until its command is
// executed. It stays loaded, with its result, as long as the connection lives,
// or until Unref; then systemd forgets it by itself.
func (b *Bus) StartTransient(ctx context.Context, t Transient) (result string, err error) {
	errs := t.Errors
	if errs == nil {
		errs = t.Output
	}
	props := []property{
		{"Description", dbus.MakeVariant(t.Description)},
		{"Slice", dbus.MakeVariant(t.Slice)},
		// exec: the job fails if the command cannot be executed.
		{"Type", dbus.MakeVariant("exec")},
		{"ExecStart", dbus.MakeVariant([]command{{t.Argv[0], t.Argv, false}})},
		{"StandardInputFileDescriptor", dbus.MakeVariant(dbus.UnixFD(t.Stdin.Fd()))},
		{"StandardOutputFileDescriptor", dbus.MakeVariant(dbus.UnixFD(t.Output.Fd()))},
		{"StandardErrorFileDescriptor", dbus.MakeVariant(dbus.UnixFD(errs.Fd()))},
		// What the main process leaves behind may serve a mount.
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
	// Of a limit that is not set yet either property sets both: the hard one first.
	props = append(props, property{"LimitCORE", dbus.MakeVariant(t.Core)}, property{"LimitCORESoft", dbus.MakeVariant(uint64(0))})
	if t.Command {
		props = append(props, property{"SuccessExitStatus", dbus.MakeVariant(anyStatus())}, property{"LogLevelMax", dbus.MakeVariant(int32(warning))})
	}
	if t.NoFile > 0 {
		props = append(props, property{"LimitNOFILE", dbus.MakeVariant(t.NoFile)}, property{"LimitNOFILESoft", dbus.MakeVariant(min(t.NoFile, usualNoFile))})
	}
	return b.job(ctx, "start service "+t.Name, "StartTransientUnit", t.Name, "fail", props, []auxiliary{})
}

// Ref keeps a unit loaded, with what became of it, as Transient does. It reports
// whether there is such a unit.
func (b *Bus) Ref(ctx context.Context, name string) (bool, error) {
	err := b.call(ctx, "RefUnit", name)
	if isError(err, systemdName+".NoSuchUnit") {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot have systemd keep unit %q: %w", name, err)
	}
	return true, nil
}

// Unref undoes Ref.
func (b *Bus) Unref(ctx context.Context, name string) error {
	if err := b.call(ctx, "UnrefUnit", name); err != nil {
		return fmt.Errorf("cannot have systemd forget unit %q: %w", name, err)
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

// job calls a method that makes a job and waits for its result, or for the end
// of ctx.
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

// jobMade looks for the result of a job that was just made, and returns a
// channel for it if it is still to come.
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
