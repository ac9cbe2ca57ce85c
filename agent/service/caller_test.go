package service

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/peer"
)

// reader is a caller without write permission.
var reader = Caller{Peer: peer.Peer{UID: 1000, PID: 8, Known: true}}

// reading lists the methods that a caller without write permission may call.
var reading = []string{
	"Claims.Get", "Claims.List", "Classes.Get", "Classes.List", "Cluster.Host", "Cluster.Hosts", "Cluster.Volume", "Cluster.Volumes", "Doctor.Examine", "Events.After", "Events.Read", "Node.Health", "Node.Status",
	"Plugins.Get", "Plugins.List", "Snapshots.Group", "Snapshots.List",
	"Storage.Capacity", "Storage.Health", "Storage.Report", "Storage.Stats", "Storage.Volumes", "Volumes.Get", "Volumes.List",
}

// TestRefusals calls, as a reader, every method that is not listed in reading. The method must
// refuse the caller before it calls one of its dependencies. The service has no dependencies, so
// such a call panics.
func TestRefusals(t *testing.T) {
	nouns, missing := reflect.ValueOf(*New(Options{})), slices.Clone(reading)
	for i := range nouns.NumField() {
		noun := nouns.Field(i)
		for j := range noun.NumMethod() {
			name := nouns.Type().Field(i).Name + "." + noun.Type().Method(j).Name
			if slices.Contains(reading, name) {
				missing = slices.DeleteFunc(missing, func(s string) bool { return s == name })
				continue
			}
			refused(t, name, func() error { return callFor(reader, noun.Method(j)) })
		}
	}
	if len(missing) > 0 {
		t.Errorf("there are no methods %q", missing)
	}

	// These methods refuse a reader only if the request names secrets.
	secrets := map[string]api.Secret{"key": {File: "/etc/shadow"}}
	s := New(Options{})
	refused(t, "Snapshots.List", func() error {
		_, err := s.Snapshots.List(t.Context(), reader, SnapshotFilter{Secrets: secrets})
		return err
	})
	refused(t, "Snapshots.Group", func() error {
		_, err := s.Snapshots.Group(t.Context(), reader, SnapshotID{}, api.SnapshotRef{Secrets: secrets})
		return err
	})
}

// callFor calls a method with a caller and with zero values as the other arguments. It returns the
// error of the method.
func callFor(by Caller, method reflect.Value) error {
	var args []reflect.Value
	for i := range method.Type().NumIn() {
		in := method.Type().In(i)
		if in == reflect.TypeFor[Caller]() {
			args = append(args, reflect.ValueOf(by))
		} else {
			args = append(args, reflect.Zero(in))
		}
	}

	results := method.Call(args)
	err, _ := results[len(results)-1].Interface().(error)
	return err
}

// refused checks that a call returns a permission error and does not panic.
func refused(t *testing.T, name string, call func() error) {
	t.Helper()
	defer func() {
		if recover() != nil {
			t.Errorf("%s calls the domain for a caller without permission", name)
		}
	}()

	var e *api.Error
	if err := call(); !errors.As(err, &e) || e.Code != api.CodePermission {
		t.Errorf("%s returns %v for a caller without permission", name, err)
	}
}

// TestRuntimeCaller checks that RuntimeCaller refuses a container runtime that does not run as
// root.
func TestRuntimeCaller(t *testing.T) {
	for _, p := range []peer.Peer{{}, {UID: 12345, Known: true, PID: 1}} {
		if c, err := RuntimeCaller(p); err == nil || c.MayWrite {
			t.Errorf("%+v gets the rights %+v", p, c)
		}
	}
	if c, err := RuntimeCaller(peer.Peer{Known: true}); err != nil || c.CheckWrite() != nil {
		t.Errorf("root gets the rights %+v, %v", c, err)
	}
}
