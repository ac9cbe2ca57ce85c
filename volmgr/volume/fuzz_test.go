package volume_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// onDisk is the input of FuzzRecord: a stored record with its claims, and an observation.
type onDisk struct {
	record   volume.Record
	claims   [2]volume.Claim
	observed volume.Observed
}

// storedSeeds returns records of volumes at several moments of their life.
func storedSeeds() []onDisk {
	mode := call.Capability{Access: call.SingleNodeWriter, Attachment: call.FileSystem}
	mount := &volume.MountIdentity{Boot: "b", Device: "8:1", Root: "/", FSType: "ext4", ID: 7}
	claim := func(alloc string, seq uint64, state volume.ClaimState) volume.Claim {
		wanted := state == volume.Pending || state == volume.Mounted
		c := volume.Claim{Alloc: alloc, Seq: seq, Wanted: wanted, State: state, Terms: volume.Terms{Mode: mode, Owner: volume.Owner{Kind: volume.OwnerNone}}, Target: "/t/" + alloc}
		if state == volume.Mounted || state == volume.Unpublishing {
			c.Published, c.Mount = volume.Present, mount
		}
		return c
	}
	var all []onDisk
	for _, state := range []volume.ClaimState{volume.Pending, volume.Mounted, volume.Unpublishing, volume.NodeDetached, "odd"} {
		for _, side := range []volume.Side{volume.Absent, volume.Unknown, volume.Failed, volume.Present, "odd"} {
			r := volume.Record{
				Volume: volume.Volume{ID: "data", PluginID: "p", Driver: "d", ExternalID: "e"},
				Node: volume.NodeSide{
					Mode: &volume.Mode{Capability: mode}, Uses: volume.Uses{Attach: true, Stage: true}, Attached: side, Staged: side, StagingPath: "/s", Seq: 2, Boot: "b",
					Watches: []volume.Watch{{Path: "/t/a", Alloc: "a"}, {Attachment: true, Undo: true}},
				},
			}
			o := volume.Observed{
				Boot: "b", Plugin: plugin.View{Known: true, Ready: true}, Staging: volume.Sight{Seen: volume.SeenMount, Identity: *mount},
				Targets: map[string]volume.Sight{"a": {Seen: volume.SeenMount, Identity: *mount}, "b": {Seen: volume.SeenDead}}, Parked: map[string]bool{},
			}
			all = append(all, onDisk{r, [2]volume.Claim{claim("a", 1, state), claim("b", 2, volume.Mounted)}, o})
		}
	}
	odd := all[0]
	odd.record.Node.PendingCalls = []volume.PendingCall{{Kind: call.NodeUnstage, Path: "/s"}, {Kind: "odd"}}
	odd.record.Volume.Expansion = volume.Expansion{Want: -1}
	odd.claims[0].Without, odd.claims[0].At, odd.claims[0].Bound = "odd", "/at", volume.Present
	return append(all, odd, onDisk{})
}

// FuzzRecord passes any record that a state database, a backup or a note may contain to the
// functions that decide and describe. An unknown state must remain unchanged. A step must use only
// paths of the record, and no function may change its input.
func FuzzRecord(f *testing.F) {
	for _, s := range storedSeeds() {
		var raw [4][]byte
		for i, v := range []any{s.record, s.claims[0], s.claims[1], s.observed} {
			text, err := json.Marshal(v)
			if err != nil {
				f.Fatal(err)
			}
			raw[i] = text
		}
		f.Add(raw[0], raw[1], raw[2], raw[3], byte(len(raw[0])))
	}
	f.Fuzz(func(t *testing.T, record, first, second, seen []byte, how byte) {
		var r volume.Record
		var o volume.Observed
		if json.Unmarshal(record, &r) != nil || json.Unmarshal(seen, &o) != nil {
			return
		}
		r.Claims = map[string]volume.Claim{}
		for _, raw := range [][]byte{first, second} {
			var c volume.Claim
			if json.Unmarshal(raw, &c) == nil {
				r.Claims[c.Alloc] = c
			}
		}
		_ = r.Check()
		readings := []volume.Record{r, volume.Restored(r, how&1 != 0, how&2 != 0, nil), volume.NextBoot(r)}
		for _, stop := range []volume.Stop{volume.Stopped, volume.Crashed, volume.Rebooted, volume.Shut} {
			loaded, _ := volume.Loaded(r, stop, how&4 != 0)
			readings = append(readings, loaded)
		}
		for _, r := range readings {
			live(t, r, o)
		}
		n := volume.Note{Format: volume.NoteFormat, Record: r}
		for _, c := range r.Claims {
			if n.Claim = c; n.Check() != nil {
				continue
			}
			for _, r := range volume.Gather([]volume.Note{n, n}) {
				adopted := volume.Adopt(r, o, how&8 != 0)
				if err := adopted.Check(); err != nil {
					t.Errorf("a good note is adopted as %+v: %v", adopted, err)
				}
				live(t, adopted, o)
			}
		}
	})
}

// live runs several steps of a volume. Every second step fails.
func live(t *testing.T, r volume.Record, o volume.Observed) {
	t.Helper()
	for step := range 6 {
		before, err := json.Marshal([]any{r, r.Claims, o})
		if err != nil {
			t.Fatal(err)
		}
		a := volume.Next(r, o)
		at := &volume.Attempt{Action: a, Tries: step, Err: &volume.CallError{Step: string(a.Kind), Code: "Internal", Answered: step%2 == 0}}
		_, _, _, _ = volume.Explain(r, o, at), volume.Explain(r, o, nil), r.Occupancy(o, at, nil), r.PendingCallState(at, o.Plugin)
		_, _, _ = r.PendingCalls(), r.Left(), volume.PathsToObserve(r)
		known := r.Node.Attached.Valid() && r.Node.Staged.Valid()
		for _, c := range r.Claims {
			known = known && c.Published.Valid() && c.Bound.Valid()
		}
		if !known && a.Kind != volume.Wait {
			t.Fatalf("%+v is done about a state that is not known: %+v", a, r)
		}
		if !onRecord(r, a.Path) {
			t.Fatalf("%+v is done at a path that is not on record: %+v", a, r)
		}
		out := volume.Outcome{}
		if step%2 == 1 {
			out.Err = at.Err
		}
		next, _ := volume.Apply(r, a, out)
		after, err := json.Marshal([]any{r, r.Claims, o})
		if err != nil || !slices.Equal(before, after) {
			t.Fatalf("%+v changed\n%s\nto\n%s", a, before, after)
		}
		if reflect.DeepEqual(next, r) {
			return
		}
		r = next
	}
}

// onRecord reports whether the record contains a path.
func onRecord(r volume.Record, path string) bool {
	paths := []string{"", r.Node.StagingPath}
	for _, c := range r.Claims {
		paths = append(paths, c.Target, c.At)
	}
	for _, w := range r.Node.Watches {
		paths = append(paths, w.Path)
	}
	for _, d := range r.Node.PendingCalls {
		paths = append(paths, d.Path)
	}
	return slices.Contains(paths, path)
}

// FuzzDebtKey checks the keys of records that a forced deregister keeps. Each key must name exactly
// one storage volume, and must never be a valid volume id.
func FuzzDebtKey(f *testing.F) {
	for _, name := range []string{"", "d", "a/b", "\xff", "debt/", "é"} {
		f.Add(name, "vol-1", name)
		f.Add("driver", name, "data")
	}
	f.Add("debt/a", "b\x00c", "debt/x\x00y")
	f.Fuzz(func(t *testing.T, driver, external, id string) {
		if _, _, ok := volume.ParseLeftoverKey(id); ok && volume.CheckID("volume id", id) == nil {
			t.Errorf("the id %q is taken for a debt", id)
		}
		if strings.Contains(driver, "\x00") {
			return // a driver cannot have such a name
		}
		d, e, ok := volume.ParseLeftoverKey(volume.LeftoverKey(driver, external))
		if !ok || d != driver || e != external {
			t.Errorf("%q of %q became %q of %q", external, driver, e, d)
		}
	})
}
