package statedb_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestDecode checks that storing and reading a record or a claim preserves every field.
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

// TestStoredClaim checks that the old and the new JSON decoder read a claim of an earlier release
// in the same way. Encoding the claim again must produce the same keys and values. Only their order
// may differ.
func TestStoredClaim(t *testing.T) {
	id := volume.MountIdentity{Namespace: 1, Boot: "b", Device: "8:1", Root: "/", FSType: "ext4", ID: 7, Backing: "/img"}
	full := volume.Claim{
		Alloc: "web", Seq: 3, Wanted: true, State: volume.Mounted,
		Terms: volume.Terms{
			ReadOnly: true, Mode: call.Capability{Access: call.SingleNodeWriter, Attachment: call.FileSystem},
			Owner: volume.Owner{Kind: volume.OwnerUnit, PID: 12, StartTime: 34, Unit: "web.service", Invocation: "0123", Runtime: "docker", Volume: "v", Boot: "boot"},
			At:    "/srv/web", AtFlags: "nosuid,nodev", AtWritable: true,
			Own: volume.Ownership{UID: "1", GID: "2", Mode: "0770", Recursive: true, ByPlugin: true, Default: true},
		},
		Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Target: "/t/web", Published: volume.Present, Mount: &id,
		Bound: volume.Present, BoundMount: &id, Adopted: true, Owned: true, Without: volume.ByLazy,
	}
	for text, want := range map[string]volume.Claim{
		`{"alloc":"web","seq":3,"wanted":true,"state":"taken","read_only":true,` +
			`"mode":{"access_mode":"single-node-writer","attachment_mode":"file-system"},` +
			`"owner":{"kind":"unit","pid":12,"start_time":34,"unit":"web.service","invocation":"0123","runtime":"docker","volume":"v","boot":"boot"},` +
			`"since":"2026-01-02T03:04:05Z","target":"/t/web","published":"present",` +
			`"mount":{"ns":1,"boot":"b","dev":"8:1","root":"/","fs":"ext4","id":7,"backing":"/img"},` +
			`"at":"/srv/web","bound":"present","at_flags":"nosuid,nodev","at_writable":true,` +
			`"bound_mount":{"ns":1,"boot":"b","dev":"8:1","root":"/","fs":"ext4","id":7,"backing":"/img"},"adopted":true,` +
			`"own":{"uid":"1","gid":"2","mode":"0770","recursive":true,"by_plugin":true,"default":true},"owned":true,"without":"lazy"}`: full,
		`{"alloc":"","seq":0,"wanted":false,"state":"","mode":{"access_mode":"","attachment_mode":""},"owner":{"kind":""},` +
			`"since":"0001-01-01T00:00:00Z","target":""}`: {},
	} {
		var got volume.Claim
		if err := json.Unmarshal([]byte(text), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("decoded: %+v, %v\nwant %+v", got, err, want)
		}
		if got, err := statedb.Claim([]byte(text)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("decoded from the file: %+v, %v\nwant %+v", got, err, want)
		}

		raw, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if now, before := members(t, raw), members(t, []byte(text)); len(raw) != len(text) || !maps.Equal(now, before) {
			t.Errorf("encoded:\n got %s\nwant %s", raw, text)
		}
	}
}

// members returns the members of a JSON object with the text of their values.
func members(t *testing.T, object []byte) map[string]string {
	t.Helper()
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(object, &raw); err != nil {
		t.Fatal(err)
	}

	all := map[string]string{}
	for name, value := range raw {
		all[name] = string(value)
	}
	return all
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

// TestLostPages truncates a file by any number of pages. The file must count as damaged, even if
// the missing pages belong to one large value.
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
	for i := range 3 { // these commits move the pages of the large value to the end of the file
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
