package failover

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Host contains the functions with which failover accesses the host. Tests replace them.
type Host struct {
	// StateDir is the directory for records and switches.
	StateDir string

	// Run runs a program without a shell, and returns its output.
	Run func(ctx context.Context, program string, args ...string) (string, error)
}

// HostAt returns the Host that acts on the real host. The path root is a prefix for the state
// directory.
func HostAt(root string) Host {
	return Host{StateDir: filepath.Join(root, stateDir), Run: runProgram}
}

// runProgram runs a program. The error contains the program's output.
func runProgram(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = time.Second
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		said := strings.Join(strings.Fields(errs.String()), " ")
		return "", fmt.Errorf("cannot run %s %s: %w: %s", program, args[0], err, said)
	}
	return string(out), nil
}

// queryWithin limits a question to systemd or docker.
const queryWithin = 10 * time.Second

// service returns the state of a service. systemd shows a service with a pending job, such as a
// restart, for a moment as inactive. It counts as running.
func (h Host) service(ctx context.Context, unit string) serviceState {
	ctx, cancel := context.WithTimeout(ctx, queryWithin)
	defer cancel()
	out, err := h.Run(ctx, "systemctl", "show", "--property=ActiveState,Job", "--", unit)
	if err != nil {
		return serviceUnknown
	}
	return parseService(out)
}

// parseService parses the output of systemctl show.
func parseService(out string) serviceState {
	state, job := "", false
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "ActiveState":
			state = value
		case "Job":
			job = value != "" && value != "0"
		}
	}

	switch {
	case state == "":
		return serviceUnknown
	case job:
		return serviceRuns
	case state == "inactive":
		return serviceEnded
	case state == "failed":
		return serviceFailed
	default:
		return serviceRuns
	}
}

// notify sends a message to systemd. It is only information, so errors are ignored.
func notify(socket, message string) {
	if socket == "" {
		return
	}
	conn, err := net.Dial("unixgram", socket)
	if err != nil {
		return
	}
	_, _ = conn.Write([]byte(message))
	_ = conn.Close()
}
