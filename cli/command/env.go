package command

import (
	"context"
	"io"
	"time"
)

// Env holds the data and functions that a run gets from its process. Tests replace them.
type Env struct {
	// Program is argv[0], the name under which the process was started. Its directory is ignored.
	Program string

	// Args are the arguments after the program's name.
	Args           []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string

	// StdinTerminal reports whether volctl can ask questions, and StdoutTerminal whether it may
	// print colours.
	StdinTerminal, StdoutTerminal bool

	// StdoutColumns and StderrColumns return the width of the terminal on that stream, or 0 if the
	// stream is not a terminal. They may be nil.
	StdoutColumns, StderrColumns func() int

	// Now returns the current time. Ages are relative to it, and times are shown in its time zone.
	Now func() time.Time

	// Pause waits for d or until ctx ends. If it is nil, the real clock is used.
	Pause func(ctx context.Context, d time.Duration) error

	// Cgroup returns the content of /proc/self/cgroup, which names the calling service.
	Cgroup func() ([]byte, error)

	// Device returns the path of a block device with the given number, such as 7:0. It returns ""
	// if the kernel knows no such device. It may be nil.
	Device func(number string) string

	// Service returns the properties of a systemd unit by their names. If it is nil, systemd is not
	// available.
	Service func(ctx context.Context, unit string) map[string]string
}

// device calls Device, or returns "" if Device is nil.
func (e Env) device(number string) string {
	if e.Device == nil {
		return ""
	}
	return e.Device(number)
}
