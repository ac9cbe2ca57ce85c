// Package pluginlog keeps and reads the logs of plugins. Each log has one of these types:
//
//	File     a file that the plugin itself writes and the agent rotates
//	Copy     a file to which the agent copies the output of a container
//	Journal  the entries of a unit in the journal of systemd
//
// The package removes secrets, and characters that control a terminal, from all lines that it
// returns.
package pluginlog

import (
	"context"
	"time"
)

// Log is the log of one part of a plugin.
type Log interface {
	// Path returns the path of the log file, or "" if the log is not in a file.
	Path() string
	// Freshen makes the log contain all output so far. It waits at most for the duration wait.
	Freshen(wait time.Duration)
	// Tail returns the last n lines of the log. If the log does not exist, it returns no lines.
	Tail(n int, scrub Scrub) ([]string, error)
	// Follow returns the last n lines of the log, and a function that reads the lines after them.
	Follow(n int, scrub Scrub) (last []string, rest Reader, err error)
}

// Reader calls tell with new lines of a log, until ctx ends or tell fails.
type Reader func(ctx context.Context, tell func(lines []string) error) error
