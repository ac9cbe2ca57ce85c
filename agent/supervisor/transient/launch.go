package transient

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// launch is a command that is passed to a systemd service. Every user of the host can read the
// properties of a service in systemd. The environment holds secrets, so it is passed separately: in
// memory that only the two processes and systemd have open.
type launch struct {
	Path string
	Argv []string
	Env  []string
}

// pack writes a command to a file that exists only in memory.
func (l launch) pack() (f *os.File, err error) {
	fd, err := unix.MemfdCreate("volagent-launch", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot make memory for the plugin's environment: %w", err)
	}

	f = os.NewFile(uintptr(fd), "launch")
	err = gob.NewEncoder(f).Encode(l)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}

	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot hand the plugin its environment: %w", err), f.Close())
	}

	return f, nil
}

// Launch replaces its process with the command that it reads from its standard input. It returns
// only if that fails.
func Launch() error {
	var l launch
	if err := gob.NewDecoder(os.Stdin).Decode(&l); err != nil {
		return fmt.Errorf("cannot read what to run: only the agent starts this: %w", err)
	}
	// systemd keeps the file open while the service runs, and the file holds secrets.
	if err := unix.Ftruncate(unix.Stdin, 0); err != nil {
		return fmt.Errorf("cannot clear what was read: %w", err)
	}

	null, err := os.Open(os.DevNull)
	if err == nil {
		err = unix.Dup3(int(null.Fd()), unix.Stdin, 0)
	}

	if err != nil {
		return fmt.Errorf("cannot close the standard input: %w", err)
	}

	return StartError(l.Path, unix.Exec(l.Path, l.Argv, l.Env))
}

// launchOf converts a command to a launch.
func launchOf(cmd *exec.Cmd) launch { return launch{Path: cmd.Path, Argv: cmd.Args, Env: cmd.Env} }

// StartError returns the error for a command that could not be run.
func StartError(path string, err error) error {
	var perr *fs.PathError
	if errors.As(err, &perr) {
		err = perr.Err
	}
	return fmt.Errorf("cannot run %q: %w", path, err)
}
