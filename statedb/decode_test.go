package statedb_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestDecode checks that no field of a record or a claim is lost or changed on the way through the
// file.
func TestDecode(t *testing.T) {
	var full volume.Record
	fillValue(reflect.ValueOf(&full).Elem(), new(int))
	odd := lived(7)
	odd.Claims, odd.Volume.Name, odd.Volume.Context = nil, "größe \"<&>\" \\ \n", map[string]string{"k": "é", "": ""}
	for name, r := range map[string]volume.Record{"full": full, "odd": odd, "empty": {}} {
		same(t, name, r, statedb.Record)
	}
	var fullClaim volume.Claim
	fillValue(reflect.ValueOf(&fullClaim).Elem(), new(int))
	for name, c := range map[string]volume.Claim{"full claim": fullClaim, "claim": lived(7).Claims["alloc-00007"], "empty claim": {}} {
		same(t, name, c, statedb.Claim)
	}
}

func same[V any](t *testing.T, name string, v V, decode func([]byte) (V, error)) {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode(raw)
	if err != nil || !reflect.DeepEqual(got, v) {
		t.Errorf("%s:\n got %+v, %v\nwant %+v\n%s", name, got, err, v, raw)
	}
	if _, err := decode(raw[:len(raw)-1]); err == nil {
		t.Errorf("%s: what is cut off is taken for whole", name)
	}
}

// fillValue gives every stored field a different value.
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
			if v.Type().Field(i).Tag.Get("json") != "-" {
				fillValue(v.Field(i), n)
			}
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
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint8:
		v.SetUint(uint64(*n) & 0xff)
	case reflect.Uint64:
		v.SetUint(uint64(*n) << 56)
	default:
		panic(v.Kind())
	}
}

// A file that has lost any page at its end counts as damaged, even if only part of a value that
// spans many pages is lost.
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
	for i := range 3 { // moves the pages of the large value to the end of the file
		do(t, db.Update, func(tx *statedb.Tx) error {
			tx.PutNode(statedb.Node{ID: fmt.Sprint(i)})
			return nil
		})
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	cut, used := copied(t, path), int64(0)
	peek(t, copied(t, path), func(tx *bbolt.Tx) error { used = tx.Size(); return nil })
	for size := used - 1; size > 0; size -= int64(os.Getpagesize()) {
		if err := os.Truncate(cut, size); err != nil {
			t.Fatal(err)
		}
		db, err := statedb.Open(cut, statedb.Options{})
		var d *statedb.Damage
		if !errors.As(err, &d) {
			t.Errorf("%d bytes of %d: not taken for damaged: %v, %v", size, used, db, err)
		}
	}
}
