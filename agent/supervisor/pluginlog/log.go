// Package pluginlog keeps and reads the logs of plugins. Each log has one of these places:
//
//	File     a file that the plugin itself writes, rotated by the agent
//	Copy     such a file with the copied output of a container
//	Journal  the journal of systemd, for a unit
//
// All lines that leave the package are free of secrets and of characters that control a terminal.
package pluginlog

import (
	"context"
	"time"
)

// Log is the log of one part of a plugin.
type Log interface {
	// Path returns the path of the log file, or "" if the log is not in a file.
	Path() string
	// Freshen brings the log up to date. It waits at most for the duration wait.
	Freshen(wait time.Duration)
	// Tail returns the last n lines. A log that does not exist has no lines.
	Tail(n int, scrub Scrub) ([]string, error)
	// Follow returns the last n lines, and a function that reads the lines after them.
	Follow(n int, scrub Scrub) (last []string, rest Reader, err error)
}

// Reader calls tell with new lines, until ctx ends or tell fails.
type Reader func(ctx context.Context, tell func(lines []string) error) error
