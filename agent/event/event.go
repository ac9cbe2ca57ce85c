// Package event stores events. It keeps the last events in memory, for clients that follow them. It
// keeps the events of some days in files, for users who search the history. If a failure repeats,
// the package reports the first one at once, and the repetitions at ever longer intervals with a
// count. A failure that repeats all day therefore fills neither the files nor the log of the agent.
//
//	event.go    Log: Add, After, Close
//	ring.go     the last events, in memory
//	repeat.go   limits repeated events
//	disk.go     writes the files, which are limited in age and size
//	read.go     reads the files
package event

import (
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// Event is an event with its time and number.
type Event struct {
	volume.Event
	Time time.Time
	// open returns a log that is closed at the end of the test. The test fails if the log cannot
	// write a file.
	Seq uint64
}

// Options configures a Log. The zero value keeps events only in memory.
type Options struct {
	// Dir is the directory of the files. Open creates it if it does not exist.
	Dir string
	// Keep is how long the files keep an event at least. Each file covers one day, so an event can
	// stay a day longer. 0 means seven days.
	Keep time.Duration
	// MaxBytes is the maximum total size of the files. 0 means 64 MiB.
	MaxBytes int64
	// Told is called once for each event that the log stores. The call comes from the goroutine
	// that adds the event, or from the goroutine that reports the end of repetitions. Calls may
	// overlap.
	Told func(Event)
	// Warn is called once when the log cannot write its files. After a successful write, it may be
	// called again.
	Warn func(message string, err error)
}
