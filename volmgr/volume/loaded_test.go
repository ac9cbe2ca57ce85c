package volume_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// stops are the ways in which an agent can end.
var stops = []volume.Stop{volume.Crashed, volume.Rebooted, volume.Stopped, volume.Shut}

// setUnstored sets all fields of a struct that the state database does not store.
func setUnstored(v reflect.Value) (found int) {
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("json") == "-" {
			setNonzero(v.Field(i))
			found++
		}
	}
	return found
}

// setNonzero sets a value, and all fields of a struct, to a value other than zero.
func setNonzero(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString(string(volume.Present))
	case reflect.Struct:
		for i := range v.NumField() {
			setNonzero(v.Field(i))
		}
	default:
		panic("setNonzero cannot set a value of kind " + v.Kind().String())
	}
}

// TestLoadedUnstored checks that an agent starts with a record as the state database has it. Tests that keep the
// records of a host in memory would otherwise continue with the proof of an agent that has died.
func TestLoadedUnstored(t *testing.T) {
	for _, after := range stops {
		inMemory := sharedMounted(t)
		stored := inMemory
		if setUnstored(reflect.ValueOf(&inMemory.Node).Elem()) == 0 || setUnstored(reflect.ValueOf(&inMemory.Node.Hold).Elem()) == 0 {
			t.Fatal("the node side and the hold have no field that is not stored")
		}
		text, err := json.Marshal(inMemory.Node)
		if err != nil {
			t.Fatal(err)
		}
		stored.Node = volume.NodeSide{}
		if err := json.Unmarshal(text, &stored.Node); err != nil {
			t.Fatal(err)
		}

		got, gotChanged := volume.Loaded(inMemory, after, false)
		want, wantChanged := volume.Loaded(stored, after, false)
		if !reflect.DeepEqual(got, want) || gotChanged != wantChanged {
			t.Errorf("after stop %d: the record in memory becomes (changed: %t)\n%+v\nand the stored one (changed: %t)\n%+v", after, gotChanged, got.Node, wantChanged, want.Node)
		}
	}
}

// TestLoadedWhileDetaching checks a host that boots with a record from the middle of a detach. The host has given
// its hold up after that. A detach that the cluster refuses must not make the record show the old hold again. The
// host would otherwise conclude that etcd has gone back.
func TestLoadedWhileDetaching(t *testing.T) {
	r := sharedMounted(t)
	r.Claims = nil
	r.Node.Staged, r.Node.Mount = volume.Absent, nil
	r, _ = volume.Apply(r, volume.Action{Kind: volume.Prove}, volume.Outcome{})
	if r.Node.Hold.Before.State != volume.Present {
		t.Fatalf("the proof has not kept the hold: %+v", r.Node.Hold)
	}

	refused := volume.Outcome{Err: volume.HostError(string(call.ControllerUnpublish), errors.New("this host has lost its hold on the volume")), Unsent: true}
	for _, after := range []volume.Stop{volume.Rebooted, volume.Shut} {
		got, _ := volume.Loaded(r, after, false)
		got, _ = volume.Apply(got, volume.Action{Kind: call.ControllerUnpublish, NodeID: "n"}, refused)
		if h := got.Node.Hold; h.State != volume.Unknown || h.Confirmed {
			t.Errorf("after stop %d: the record shows the hold %+v", after, h)
		}
	}
}
