package command

import (
	"context"
	"io"
	"time"
)

// Env holds the inputs and functions that a run gets from its process. Tests replace them.
type Env struct {
	// Program is argv[0], the name under which the process was started. volctl ignores the
	// directory in it.
	Program string

	// Args are the arguments after the name of the program.
	Args           []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string

	// StdinTerminal reports whether volctl can ask questions. StdoutTerminal reports whether volctl
	// may print colours.
	StdinTerminal, StdoutTerminal bool

	// StdoutColumns and StderrColumns return the width of the terminal on the stream, or 0 if the
	// stream is not a terminal. They may be nil.
	StdoutColumns, StderrColumns func() int

	// Now returns the current time in the time zone for output. volctl calculates ages from it.
	Now func() time.Time

	// Pause waits for d or until ctx ends. If Pause is nil, volctl uses the real clock.
	Pause func(ctx context.Context, d time.Duration) error

	// Cgroup returns the contents of /proc/self/cgroup, which show the calling service.
	Cgroup func() ([]byte, error)

	// Device returns the path of the block device with a number such as 7:0. It returns "" if the
	// kernel has no such device. Device may be nil.
	Device func(number string) string

	// Service returns the properties of a systemd unit. Service is nil if systemd is not available.
	Service func(ctx context.Context, unit string) map[string]string
}

// device calls Device, or returns "" if Device is nil.
func (e Env) device(number string) string {
	if e.Device == nil {
		return ""
	}
	return e.Device(number)
}
