package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// Host is one host of a lab. The methods of harness.Host act inside the namespaces of the host: Start
// starts the agent there, and Try and Volctl run volctl there.
type Host struct {
	*harness.Host

	Name    string // the host name and the node id of the agent
	Address string // an IPv4 address

	// MachineID is the content of /etc/machine-id. ProductUUID is the content of
	// /sys/class/dmi/id/product_uuid; without it, the host has no DMI. Changes take effect at the next
	// PowerOn. With the values of another host, the host is a clone.
	MachineID, ProductUUID string

	// Beside is a host on the same kernel, as if both were containers of one machine. This host then has
	// its boot id from the next PowerOn on. Without Beside, each boot has an id of its own.
	Beside *Host

	network  *network
	number   int    // the last byte of the addresses
	identity string // a directory with files such as /etc/machine-id; not in Dir, because they are mounted
	space    *space // nil while the host is off
	bootID   string
	started  []*Process
}

// place is a host as the place of its harness.Host.
type place struct{ h *Host }

func (p place) Enter(do func() error) error { return p.h.Enter(do) }

func (p place) MountTable() ([]byte, error) {
	if !p.h.On() {
		return nil, nil // no mount outlives its namespace
	}
	return os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", p.h.space.pid()))
}

func (p place) PID(inner int) int {
	if !p.h.On() {
		return 0
	}
	return outerPID(p.h.space.pid(), inner)
}

// On reports whether the host is switched on.
func (h *Host) On() bool { return h.space != nil }

// BootID returns the boot id of the host.
func (h *Host) BootID() string { return h.bootID }

// Enter calls do on a thread in the network and mount namespaces of the host. Processes that do starts
// are on the host. In do, /proc/self does not exist, because the thread is not a process of the host.
// The function do must not end the test.
func (h *Host) Enter(do func() error) error {
	if !h.On() {
		return errOff
	}
	return h.space.enter(do)
}

// Run runs a command on the host. The command must end within 100 seconds.
func (h *Host) Run(argv ...string) harness.Result {
	h.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = h.Env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := harness.RunIn(h.Place, cmd); err != nil && !errors.As(err, &exit) {
		h.T.Fatalf("cannot run %v on %s: %v", argv, h.Name, err)
	}
	return harness.Result{Out: out.String(), Err: errs.String(), Code: cmd.ProcessState.ExitCode()}
}

// MustRun runs a command on the host, which must succeed, and returns its output.
func (h *Host) MustRun(argv ...string) string {
	h.T.Helper()
	r := h.Run(argv...)
	if r.Code != 0 {
		h.T.Fatalf("%v on %s: exit %d\n%s%s", argv, h.Name, r.Code, r.Out, r.Err)
	}
	return strings.TrimSpace(r.Out)
}

// ReadFile returns the content of a file as the host sees it, also if the file is in a mount.
func (h *Host) ReadFile(path string) (raw []byte, err error) {
	err = h.Enter(func() error {
		raw, err = os.ReadFile(path)
		return err
	})
	return raw, err
}

// WriteFile writes a file as the host sees it, also if the file is in a mount.
func (h *Host) WriteFile(path string, raw []byte) error {
	return h.Enter(func() error { return os.WriteFile(path, raw, 0o644) })
}

// Spawn starts a process on the host. It ends at the latest when the host is switched off. Its output
// goes to the writer, which may be nil.
func (h *Host) Spawn(output io.Writer, argv ...string) *Process {
	h.T.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = h.Env, output, output
	h.Must(h.Enter(cmd.Start))
	p := watch(h.T, cmd)
	h.started = append(h.started, p)
	return p
}

// StartSleeper starts a process that only sleeps and whose working directory is dir.
func (h *Host) StartSleeper(dir string) *Process {
	h.T.Helper()
	return h.Spawn(nil, "env", "-C", dir, "sleep", "infinity")
}

// Dial connects to an address from the host. It can be the dialer of a client in the test, which then
// is a client on the host.
func (h *Host) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = h.Enter(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Stop stops the agent with SIGTERM. The agent must end without an error.
func (h *Host) Stop() {
	h.T.Helper()
	if err := h.Signal(syscall.SIGTERM); err != nil {
		h.T.Fatalf("the agent of %s ended with an error: %v", h.Name, err)
	}
}

// Freeze suspends the agent. Its plugins and mounts stay as they are.
func (h *Host) Freeze() {
	h.T.Helper()
	harness.Freeze(h.Host, h.Cmd.Process)
}

// Thaw ends Freeze.
func (h *Host) Thaw() {
	h.T.Helper()
	h.Must(h.Cmd.Process.Signal(syscall.SIGCONT))
}
