package harness

import (
	"os"
	"os/exec"
	"path/filepath"
)

// Place is a set of namespaces in which the agent and the commands of a host run.
type Place interface {
	// Enter calls do on a thread in the network and mount namespaces of the place. Processes that do
	// starts are in all namespaces of the place. The function do must not end the test.
	Enter(do func() error) error

	// MountTable returns the content of /proc/self/mountinfo of a process in the place.
	MountTable() ([]byte, error)

	// PID returns the pid, as the test sees it, of a process in the place. The argument is the pid as
	// the place sees it. If there is no such process, PID returns 0.
	PID(inner int) int
}

// Here is the place with the namespaces of the test itself. All hosts are in this place, except those
// of the package lab.
type Here struct{}

// Enter calls do.
func (Here) Enter(do func() error) error { return do() }

// MountTable returns the content of /proc/self/mountinfo.
func (Here) MountTable() ([]byte, error) { return os.ReadFile("/proc/self/mountinfo") }

// PID returns its argument.
func (Here) PID(inner int) int { return inner }

// RunIn runs a command in a place.
func RunIn(p Place, cmd *exec.Cmd) error {
	if err := p.Enter(cmd.Start); err != nil {
		return err
	}
	return cmd.Wait()
}

// RemoveRuntimeFiles removes all files in the host's runtime directory, as a reboot of a real host
// does. It also detaches the loop devices, which do not survive a reboot either. The host must have
// no processes and no mounts.
func RemoveRuntimeFiles(h *Host) {
	h.T.Helper()
	detachLoops(h)
	run := filepath.Dir(h.Socket())
	files, err := os.ReadDir(run)
	h.Must(err)
	for _, f := range files {
		h.Must(os.RemoveAll(filepath.Join(run, f.Name())))
	}
}
