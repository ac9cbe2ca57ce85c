package volume

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Restored returns the record of a backup as it must be read on the host of that backup. The backup
// may be old. A side that the mount table does not show may have been made or undone since, so it
// is unknown and will be made, or undone, again.
//
// A claim counts as being detached if its owner is gone or belongs to another boot. If the host is
// being drained, a claim without an owner counts as being detached too.
func Restored(r Record, booted, draining bool, owners Owners) Record {
	after := Crashed
	if booted {
		after = Rebooted
	}

	r, _ = Loaded(r, after, false)
	n := &r.Node
	if n.Attached == Present {
		n.Attached = Unknown
	}
	if n.Staged == Present && n.Mount == nil {
		n.Staged = Unknown
	}

	n.Proven = false
	r = Past(r, owners)
	for _, c := range r.Ordered() {
		if draining && c.Wanted && !c.Owner.Mortal() {
			r = r.with(c.unwanted())
		}
	}

	return r
}

// Differences returns the fields in which two registrations of one storage volume differ, with both
// values. For secrets, it says only that they differ. It ignores the time of registration.
func Differences(here, there Volume) []string {
	a, b := fieldsOf(here), fieldsOf(there)
	names := maps.Clone(a)
	maps.Copy(names, b)

	var words []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		switch {
		case name == "registered_at", string(a[name]) == string(b[name]):
		case name == "secrets":
			words = append(words, "its secrets differ")
		default:
			words = append(words, fmt.Sprintf("%s is %s here and %s in the backup", name, orNothing(a[name]), orNothing(b[name])))
		}
	}

	return words
}

// fieldsOf returns a volume's fields as they are stored.
func fieldsOf(v Volume) map[string]json.RawMessage {
	fields := map[string]json.RawMessage{}
	if raw, err := json.Marshal(v); err == nil { // a volume can always be encoded
		_ = json.Unmarshal(raw, &fields)
	}
	return fields
}

func orNothing(raw json.RawMessage) string {
	if raw == nil {
		return "not set"
	}
	return string(raw)
}
