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

// launch describes a command that the agent passes to a systemd service. The environment of the
// command contains secrets, but every user of the host can read the properties of a service. The
// agent therefore passes the command in a memory file, which only the agent, systemd and the new
// process can access.
type launch struct {
	Path string
	Argv []string
	Env  []string
}

// pack writes the command to a memory file (memfd_create(2)).
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
		return nil, errors.Join(fmt.Errorf("cannot pass the plugin its environment: %w", err), f.Close())
	}

	return f, nil
}

// Launch replaces the current process with the command that it reads from standard input. It
// returns only if this fails.
func Launch() error {
	var l launch
	if err := gob.NewDecoder(os.Stdin).Decode(&l); err != nil {
		return fmt.Errorf("cannot read the command to run: only the agent may start this program: %w", err)
	}
	// Empty the file, because it contains secrets and systemd keeps it open while the service runs.
	if err := unix.Ftruncate(unix.Stdin, 0); err != nil {
		return fmt.Errorf("cannot clear the command after reading it: %w", err)
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

// launchOf converts an exec.Cmd to a launch.
func launchOf(cmd *exec.Cmd) launch { return launch{Path: cmd.Path, Argv: cmd.Args, Env: cmd.Env} }

// StartError returns the error for a command that could not be executed.
func StartError(path string, err error) error {
	var perr *fs.PathError
	if errors.As(err, &perr) {
		err = perr.Err
	}
	return fmt.Errorf("cannot run %q: %w", path, err)
}
