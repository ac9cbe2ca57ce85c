package csitest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Control lets a test control a plugin in any process. It is a JSON file that the plugin reads at
// each call, and repeatedly while a call hangs.
//
//	{"faults": [{"id": "a", "method": "NodeStageVolume", "delay": "3s", "code": "INTERNAL"}]}
//
// For each call, the plugin uses the first fault in the list that matches the call and was not used
// too often. If a person writes the file, every fault must have an id. The id of a removed fault
// must not be used again, because the plugin remembers which ids it has used.
type Control struct{ Path string }

type controlFile struct {
	Faults []Fault `json:"faults"`
	// Conditions lists the problems that the health calls report as long as the file contains them.
	Conditions []Condition `json:"conditions,omitempty"`
	// Node replaces the node's data from Config as long as the file contains it.
	Node *Node `json:"node,omitempty"`
}

// Node holds the data that NodeGetInfo returns.
type Node struct {
	ID         string            `json:"id"`
	MaxVolumes int64             `json:"max_volumes,omitempty"`
	Topology   map[string]string `json:"topology,omitempty"`
}

var (
	writing sync.Mutex // held while a control file is changed
	lastID  atomic.Int64
)

// Add appends faults to the file and returns their ids. If a fault has no id, Add assigns one.
func (c Control) Add(faults ...Fault) ([]string, error) {
	faults = slices.Clone(faults)
	var ids []string

	for i := range faults {
		if faults[i].ID == "" {
			faults[i].ID = fmt.Sprintf("%d-%d", time.Now().UnixNano(), lastID.Add(1))
		}

		ids = append(ids, faults[i].ID)
	}

	return ids, c.change(func(old []Fault) []Fault { return append(old, faults...) })
}

// Remove removes faults. A call that hangs because of one of these faults then continues.
func (c Control) Remove(ids ...string) error {
	return c.change(func(old []Fault) []Fault {
		return slices.DeleteFunc(old, func(f Fault) bool { return slices.Contains(ids, f.ID) })
	})
}

// Clear removes all faults. All hanging calls then continue.
func (c Control) Clear() error {
	return c.change(func([]Fault) []Fault { return nil })
}

// SetConditions replaces the problems of volumes and storage that the plugin reports. Without
// arguments, the plugin reports no problems.
func (c Control) SetConditions(all ...Condition) error {
	return c.rewrite(func(f *controlFile) { f.Conditions = all })
}

// SetNode sets the answer of NodeGetInfo.
func (c Control) SetNode(n Node) error {
	return c.rewrite(func(f *controlFile) { f.Node = &n })
}

func (c Control) change(edit func([]Fault) []Fault) error {
	return c.rewrite(func(f *controlFile) { f.Faults = edit(f.Faults) })
}

func (c Control) rewrite(edit func(*controlFile)) error {
	writing.Lock()
	defer writing.Unlock()

	file, err := c.read()
	if err != nil {
		return err
	}

	edit(&file)
	for _, f := range file.Faults {
		if err := f.valid(); err != nil {
			return fmt.Errorf("cannot set fault %q: %w", f.ID, err)
		}
	}

	b, err := json.MarshalIndent(file, "", "  ")
	if err == nil {
		err = replaceFile(c.Path, b)
	}
	if err != nil {
		return fmt.Errorf("cannot write the faults: %w", err)
	}

	return nil
}

// read returns the content of the control file. If the file is missing, the content is empty.
func (c Control) read() (controlFile, error) {
	var f controlFile
	b, err := os.ReadFile(c.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, fmt.Errorf("cannot read the faults: %w", err)
	}
	if err := strictJSON(b, &f); err != nil {
		return f, fmt.Errorf("cannot read the faults in %q: %w", c.Path, err)
	}

	for _, one := range f.Faults {
		if one.ID == "" {
			return f, fmt.Errorf("cannot read the faults in %q: one for %q has no id", c.Path, one.Method)
		}
	}

	return f, nil
}

// pick returns the fault that applies to a call, or nil. It also returns the ids of the earlier
// faults that match the call but still have calls to skip.
func (c Control) pick(call Call, used, passed map[string]int) (fault *Fault, pass []string, err error) {
	file, err := c.read()
	if err != nil {
		return nil, nil, err
	}

	for _, f := range file.Faults {
		switch {
		case !f.applies(call) || !f.left(used[f.ID]):
		case passed[f.ID] < f.Skip:
			pass = append(pass, f.ID)
		default:
			return &f, pass, nil
		}
	}

	return nil, pass, nil
}

// holds reports whether a fault still exists, so that a call must continue to hang. If the file
// cannot be read, the call also continues to hang, because a test may be changing the file.
func (c Control) holds(id string) bool {
	file, err := c.read()
	return err != nil || slices.ContainsFunc(file.Faults, func(f Fault) bool { return f.ID == id })
}

// strictJSON decodes a single value and rejects unknown fields.
func strictJSON(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is data after the JSON value")
	}

	return nil
}

// replaceFile replaces a file atomically. It does not sync the file. The content must survive the
// end of a process, but need not survive a crash of the machine.
func replaceFile(path string, data []byte) error {
	tmp := fmt.Sprintf("%s.%d.%d", path, os.Getpid(), lastID.Add(1))
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}

	return nil
}
