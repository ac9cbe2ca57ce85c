package statedb_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestDecodeAsJSON holds what Open makes of a value against encoding/json, for
// values as they are stored and for each of them damaged in one place.
func TestDecodeAsJSON(t *testing.T) {
	usual := lived(7)
	claim := usual.Claims["alloc-00007"]
	usual.Claims = nil // they have keys of their own
	var full volume.Record
	fillValue(reflect.ValueOf(&full).Elem(), new(int))
	full.Claims, full.Debt, full.Node.Proven = nil, false, false
	var fullClaim volume.Claim
	fillValue(reflect.ValueOf(&fullClaim).Elem(), new(int))
	words := usual
	words.Volume.Context, words.Node.Devices = map[string]string{"pool": "p1", "a": ""}, []string{"8:1", "8:2"}
	odd := usual
	odd.Volume.Name, odd.Volume.Context = "größe \"<&>\" \\ \n", map[string]string{"k": "é"}

	for name, r := range map[string]volume.Record{"usual": usual, "full": full, "words": words, "odd": odd, "empty": {}} {
		t.Run(name, func(t *testing.T) {
			same(t, r, name == "usual" || name == "words", statedb.Record)
		})
	}
	taken := claim
	taken.At, taken.Bound, taken.BoundMount, taken.ReadOnly = "/srv/x", volume.Present, claim.Mount, true
	taken.Owner = volume.Owner{Kind: volume.OwnerPID, PID: 77, StartTime: 123456, Boot: benchBoot}
	for name, c := range map[string]volume.Claim{"claim": claim, "bound claim": taken, "full claim": fullClaim, "empty claim": {}} {
		t.Run(name, func(t *testing.T) {
			same(t, c, name == "claim" || name == "bound claim", statedb.Claim)
		})
	}
}

// same damages a value in all ways that take one byte.
func same[V any](t *testing.T, v V, plain bool, decode func([]byte) (V, bool, error)) {
	t.Helper()
	whole, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	got, fast, err := decode(whole)
	if err != nil || plain && !fast {
		t.Fatalf("plain: %t; %v; %s", fast, err, whole)
	}
	equal(t, "what was stored", got, v)
	check := func(what string, raw []byte) {
		var want V
		wantErr := json.Unmarshal(raw, &want)
		got, _, err := decode(raw)
		if fmt.Sprint(err) != fmt.Sprint(wantErr) || err == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v, %v\nwant %+v, %v\n%s", what, got, err, want, wantErr, raw)
		}
	}
	for i := range whole {
		if !plain {
			break // encoding/json decodes it anyhow
		}
		check("cut", whole[:i])
		check("without one", slices.Delete(slices.Clone(whole), i, i+1))
		for _, c := range []byte("\"\\{}[]:,0-e. \n\x00\x80zT") {
			damaged := bytes.Clone(whole)
			damaged[i] = c
			check("damaged", damaged)
		}
	}
	check("more", append(bytes.Clone(whole), '}'))
	check("space", append(bytes.Clone(whole), ' '))
}

// fillValue gives every field a value of its own.
func fillValue(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillValue(v.Elem(), n)
	case reflect.Struct:
		if v.Type() == reflect.TypeOf(volume.Volume{}.RegisteredAt) {
			v.Set(reflect.ValueOf(lived(*n).Volume.RegisteredAt))
			return
		}
		for i := range v.NumField() {
			fillValue(v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fillValue(v.Index(0), n)
		fillValue(v.Index(1), n)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fillValue(key, n)
		fillValue(value, n)
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(fmt.Sprintf("s%d", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint64:
		v.SetUint(uint64(*n) << 56) // some have more digits than the parser takes
	default:
		panic(v.Kind())
	}
}

// A page that only a goroutine that decodes looks at may be lost as well: a value
// of many pages, of which the file has only the first.
func TestLostPages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	db, err := statedb.Open(path, statedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	do(t, db.Update, func(tx *statedb.Tx) error {
		r := lived(0)
		r.Volume.Context, r.Claims = map[string]string{"large": strings.Repeat("x", 80<<10)}, nil
		tx.PutVolume(r)
		return nil
	})
	for i := range 3 { // after which the value is what lies last
		do(t, db.Update, func(tx *statedb.Tx) error {
			tx.PutNode(statedb.Node{ID: fmt.Sprint(i)})
			return nil
		})
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	cut := copied(t, path)
	page, lost := int64(os.Getpagesize()), 0
	for size := whole.Size() - page; size > 2*page; size -= page {
		if err := os.Truncate(cut, size); err != nil {
			t.Fatal(err)
		}
		db, err := statedb.Open(cut, statedb.Options{})
		var d *statedb.Damage
		switch {
		case err == nil:
			if n := len(db.Volumes()); n != 1 {
				t.Errorf("%d bytes of %d: %d volumes", size, whole.Size(), n)
			}
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		case !errors.As(err, &d):
			t.Errorf("%d bytes of %d: not taken for damaged: %v", size, whole.Size(), err)
		case strings.Contains(err.Error(), "cannot be read"):
			lost++
		}
	}
	if lost == 0 {
		t.Error("no page was lost that is only decoded")
	}
}
