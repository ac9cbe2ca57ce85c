package san

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Kind is the kind of an event in the journal.
type Kind string

// These constants are the kinds of events.
const (
	KindCall      Kind = "call"      // a CSI call arrived
	KindAnswer    Kind = "answer"    // a call to the controller ended
	KindAttach    Kind = "attach"    // an attachment began, or became writable
	KindDetach    Kind = "detach"    // an attachment ended
	KindMount     Kind = "mount"     // a session began
	KindUnmount   Kind = "unmount"   // the kernel of the host ended a session
	KindWrite     Kind = "write"     // a change reached the disk
	KindRefused   Kind = "refused"   // a change was refused, because the gate was closed
	KindCut       Kind = "cut"       // a node was cut off
	KindRestore   Kind = "restore"   // a node was connected again
	KindViolation Kind = "violation" // a rule was broken
)

// Event is one line of the journal. Only the fields that the kind of the event needs are set.
type Event struct {
	Seq  int64     `json:"seq"` // 1, 2, 3 and so on; the order in which the SAN saw the events
	Time time.Time `json:"time"`
	Kind Kind      `json:"kind"`

	Node       string `json:"node,omitempty"`   // node that wrote, called or is attached
	Target     string `json:"target,omitempty"` // node_id in a call to the controller
	Volume     string `json:"volume,omitempty"`
	Attachment string `json:"attachment,omitempty"` // id of the attachment; see Attachment
	Mode       string `json:"mode,omitempty"`       // CSI access mode, such as "SINGLE_NODE_WRITER"
	Writable   bool   `json:"writable,omitempty"`

	// Op is the operation of a write, such as "write", "create" or "truncate". Name is the path of
	// the file in the volume, as the session last looked it up.
	Op     string `json:"op,omitempty"`
	Name   string `json:"name,omitempty"`
	Offset int64  `json:"offset,omitempty"`
	Len    int64  `json:"len,omitempty"`

	Method  string `json:"method,omitempty"` // CSI method, such as "ControllerPublishVolume"
	Call    int64  `json:"call,omitempty"`   // number of the call, which the events of its effects share
	Code    string `json:"code,omitempty"`   // gRPC code of an answer, such as "OK"
	Message string `json:"message,omitempty"`

	// Late is set if the caller had stopped waiting before the effect.
	Late bool `json:"late,omitempty"`
	Rule Rule `json:"rule,omitempty"` // broken rule of a violation
}

// cause is the call that leads to an event. It is the zero value if no call does.
type cause struct {
	call   int64
	method string
	late   bool // the caller has stopped waiting
}

func (e Event) String() string {
	raw, err := json.Marshal(e)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// JournalPath returns the path of the journal of a SAN in a directory.
func JournalPath(dir string) string { return filepath.Join(dir, "journal.jsonl") }

// ReadJournal returns the events of a SAN in a directory. The SAN may run in any process.
func ReadJournal(dir string) ([]Event, error) {
	raw, err := os.ReadFile(JournalPath(dir))
	if err != nil {
		return nil, fmt.Errorf("cannot read the journal: %w", err)
	}

	var events []Event
	raw = raw[:bytes.LastIndexByte(raw, '\n')+1] // the SAN may not have finished the last line
	for line := range bytes.Lines(raw) {
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("cannot read the journal: %w", err)
		}

		events = append(events, e)
	}

	return events, nil
}

// journal holds all events in memory and appends them to a file.
type journal struct {
	lock   sync.Mutex // a goroutine that holds it takes no other lock
	file   *os.File
	events []Event
	failed error // first failure to write the file
}

func openJournal(dir string) (*journal, error) {
	f, err := os.OpenFile(JournalPath(dir), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("cannot open the journal: %w", err)
	}
	return &journal{file: f}, nil
}

// add appends an event with the next number.
func (j *journal) add(e Event) {
	j.lock.Lock()
	defer j.lock.Unlock()
	e.Seq, e.Time = int64(len(j.events))+1, time.Now()
	j.events = append(j.events, e)

	raw, err := json.Marshal(e)
	if err == nil {
		_, err = j.file.Write(append(raw, '\n'))
	}
	if err != nil && j.failed == nil {
		j.failed = fmt.Errorf("cannot write the journal: %w", err)
	}
}

// addViolation appends the violation of a rule by an event.
func (j *journal) addViolation(rule Rule, e Event) {
	e.Kind, e.Rule = KindViolation, rule
	j.add(e)
}

func (j *journal) close() error {
	j.lock.Lock()
	defer j.lock.Unlock()
	return errors.Join(j.failed, j.file.Close())
}

// Events returns all events until now.
func (j *journal) Events() []Event {
	j.lock.Lock()
	defer j.lock.Unlock()
	return slices.Clone(j.events)
}

// Writes returns the changes of a volume that reached its disk, in order. Their Node is the node
// that made the change.
func (j *journal) Writes(volume string) []Event {
	return j.only(func(e Event) bool { return e.Kind == KindWrite && e.Volume == volume })
}

// Violations returns all violations until now. A test fails if there are any.
func (j *journal) Violations() []Event {
	return j.only(func(e Event) bool { return e.Kind == KindViolation })
}

func (j *journal) only(keep func(Event) bool) []Event {
	var kept []Event
	for _, e := range j.Events() {
		if keep(e) {
			kept = append(kept, e)
		}
	}
	return kept
}

// AwaitEvent waits until the journal contains an event after the given number that match selects,
// and returns the event.
func (j *journal) AwaitEvent(ctx context.Context, after int64, match func(Event) bool) (Event, error) {
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()

	for {
		for _, e := range j.Events() {
			if e.Seq > after && match(e) {
				return e, nil
			}
		}

		select {
		case <-ctx.Done():
			return Event{}, ctx.Err()
		case <-again.C:
		}
	}
}
