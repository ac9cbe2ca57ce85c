package command

import (
	"context"
	"io"
	"time"
)

// Env is everything that a run takes from its process. Tests make their own.
type Env struct {
	// Program is the name under which the process was started. Its directory does not matter.
	Program string

	// Args are the arguments without the program's name.
	Args           []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string

	// StdinTerminal allows questions, StdoutTerminal allows colours.
	StdinTerminal, StdoutTerminal bool

	// StdoutColumns and StderrColumns return the width of the terminal there, or 0 if there is
	// none. They may be nil.
	StdoutColumns, StderrColumns func() int

	// Now is the current time. Ages are relative to it, and times are shown in its time zone.
	Now func() time.Time

	// Pause waits for d or until ctx ends. Nil means the real clock.
	Pause func(ctx context.Context, d time.Duration) error

	// Cgroup returns the content of /proc/self/cgroup, which names the calling service.
	Cgroup func() ([]byte, error)

	// Device returns the path of a block device by its number, as in 7:0, or "" if the kernel knows
	// no such device. It may be nil.
	Device func(number string) string

	// Service asks systemd for a unit's properties, by their names. Nil means that systemd cannot
	// be asked.
	Service func(ctx context.Context, unit string) map[string]string
}

// device is Device, or knows no device.
func (e Env) device(number string) string {
	if e.Device == nil {
		return ""
	}
	return e.Device(number)
}
