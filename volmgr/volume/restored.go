package volume

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Restored is the record of a backup as it is to be read on the host that it is of. The
// backup may be old: what no look at the mount table shows may have been made or undone
// since, so it is uncertain, and is made, or undone, again. Whose owner is gone, or was
// of another boot, is past. A host that is being drained gets no claim that nobody alive
// holds.
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

// Differences are the fields in which two registrations of one storage volume differ,
// with both values; of secrets only that they do. When each was registered is none.
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

// fieldsOf are a volume's fields as they are stored.
func fieldsOf(v Volume) map[string]json.RawMessage {
	fields := map[string]json.RawMessage{}
	if raw, err := json.Marshal(v); err == nil { // it always can be
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
