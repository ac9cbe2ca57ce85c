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

// Control is how a test commands a plugin, in its own process or not: a JSON
// file that the plugin reads at each call and while it hangs.
//
//	{"faults": [{"id": "a", "method": "NodeStageVolume", "delay": "3s", "code": "INTERNAL"}]}
//
// Faults are looked at in their order, and the first that applies and is not
// used up is taken. A file written by hand must give ids and, since used ones
// are remembered, never the same id for a second fault.
type Control struct{ Path string }

type controlFile struct {
	Faults []Fault `json:"faults"`
	// Conditions are told by the calls for health as long as they are here.
	Conditions []Condition `json:"conditions,omitempty"`
	// Node replaces what Config says of the node, as long as it is here.
	Node *Node `json:"node,omitempty"`
}

// Node is what NodeGetInfo answers.
type Node struct {
	ID         string            `json:"id"`
	MaxVolumes int64             `json:"max_volumes,omitempty"`
	Topology   map[string]string `json:"topology,omitempty"`
}

var (
	writing sync.Mutex // controls are changed by one goroutine at a time
	lastID  atomic.Int64
)

// Add appends faults and returns their ids, made where they had none.
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

// Remove takes faults away and so releases calls that hang by them.
func (c Control) Remove(ids ...string) error {
	return c.change(func(old []Fault) []Fault {
		return slices.DeleteFunc(old, func(f Fault) bool { return slices.Contains(ids, f.ID) })
	})
}

// Clear takes all faults away and so releases all calls that hang.
func (c Control) Clear() error {
	return c.change(func([]Fault) []Fault { return nil })
}

// SetConditions says all that is wrong with volumes and storage from now on; with
// none of them all is well.
func (c Control) SetConditions(all ...Condition) error {
	return c.rewrite(func(f *controlFile) { f.Conditions = all })
}

// SetNode says what NodeGetInfo answers from now on.
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

// read returns what is in force; no file is nothing.
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

// pick returns the fault for a call, or nil, and those before it that let the
// call pass.
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

// holds tells whether a fault is still there, so that a call hangs on. A file
// that cannot be read ends no hang: it is being repaired.
func (c Control) holds(id string) bool {
	file, err := c.read()
	return err != nil || slices.ContainsFunc(file.Faults, func(f Fault) bool { return f.ID == id })
}

// strictJSON decodes one value without unknown fields.
func strictJSON(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more after the JSON value")
	}
	return nil
}

// replaceFile puts a whole file in place at once. It is not synced: what the
// plugin keeps outlives processes, not machines.
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
