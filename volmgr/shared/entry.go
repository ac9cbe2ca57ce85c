package shared

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"

	"github.com/volagent/volagent/volmgr/volume"
)

// Entry is one key with its decoded value.
type Entry[T any] struct {
	KV
	Value T

	// newer is set if the stored value has fields, at any depth, that this release does not know.
	newer bool
}

// Exists reports whether the key exists.
func (e Entry[T]) Exists() bool { return e.Mod > 0 }

// changed returns the key after a change. A key that existed keeps the revision of its creation.
func (e Entry[T]) changed(kv KV) []KV {
	if e.Exists() && kv.Mod > 0 {
		kv.Create = e.Create
	}
	return []KV{kv}
}

// Encode returns the stored form of a new value for the key. It keeps the fields of the earlier
// value that this release does not know, because a newer release may need them. For example, a
// release that does not know a field of a volume must not remove the field from its definition.
func (e Entry[T]) Encode(v T) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err) // the values of this package can always be encoded
	}
	if !e.newer {
		return raw
	}

	var had T
	_ = json.Unmarshal(e.KV.Value, &had) // Decode has decoded it
	known, err := json.Marshal(had)
	if err != nil {
		panic(err)
	}
	raw, _ = json.Marshal(keepUnknown(generic(e.KV.Value), generic(known), generic(raw)))
	return raw
}

// generic decodes JSON without a type. It keeps each number as it is written.
func generic(raw []byte) (v any) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	_ = d.Decode(&v) // the caller has encoded or decoded the same JSON before
	return v
}

// keepUnknown returns a new value, with the fields of the stored value that are not known. The argument
// known is the stored value as this release decodes and encodes it. An element of a list is the same one
// as before if this release sees no difference.
func keepUnknown(stored, known, now any) any {
	switch n := now.(type) {
	case map[string]any:
		had, ok := stored.(map[string]any)
		if !ok {
			return now
		}
		seen, _ := known.(map[string]any)
		for name, field := range had {
			before, isKnown := seen[name]
			after, stays := n[name]
			switch {
			case stays:
				n[name] = keepUnknown(field, before, after)
			case !isKnown:
				n[name] = field
			}
		}
	case []any:
		had, _ := stored.([]any)
		seen, _ := known.([]any)
		used := make([]bool, len(had))
		for i, element := range n {
			for j := range min(len(had), len(seen)) {
				if !used[j] && reflect.DeepEqual(seen[j], element) {
					n[i], used[j] = keepUnknown(had[j], seen[j], element), true
					break
				}
			}
		}
	}
	return now
}

// Put returns the operation that sets the key to a new value.
func (e Entry[T]) Put(v T) Op { return Put(e.Key, e.Encode(v)) }

// Decode returns the entry of a key. It fails if no release of this program writes such a value.
// For example, the prefix may belong to other data.
func Decode[T any](kv KV) (Entry[T], error) {
	e := Entry[T]{KV: kv}
	if kv.Mod == 0 {
		return e, nil
	}

	d := json.NewDecoder(bytes.NewReader(kv.Value))
	d.DisallowUnknownFields()
	if err := d.Decode(&e.Value); err == nil {
		if _, end := d.Token(); errors.Is(end, io.EOF) {
			return e, nil
		}
	}

	// The value has fields of a newer release, or is none of volagent.
	var value T
	if err := json.Unmarshal(kv.Value, &value); err != nil {
		return e, volume.Errorf(volume.ErrRefused, "the value of key %q in etcd is not one of volagent: %v", kv.Key, err).
			WithHint("does the prefix belong to other data? See cluster.prefix")
	}
	e.Value, e.newer = value, true
	return e, nil
}
