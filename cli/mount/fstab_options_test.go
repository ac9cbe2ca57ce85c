package mount

import (
	"maps"
	"slices"
	"testing"

	"github.com/volagent/volagent/agent/fstab"
)

// TestOptionsOfFstabAreThoseOfMount checks that "volctl mount" accepts exactly the options in
// package fstab, which the doctor uses.
func TestOptionsOfFstabAreThoseOfMount(t *testing.T) {
	var known []string
	for _, o := range fstab.Options {
		known = append(known, o.Name)
	}
	for name := range valued {
		if !slices.Contains(known, name) {
			t.Errorf("doctor does not know %s=", name)
		}
	}
	for _, names := range [][]string{slices.Collect(maps.Keys(plain)), slices.Collect(maps.Keys(ofMount)), ignored, ignoredValues} {
		for _, name := range names {
			if !slices.Contains(known, name) {
				t.Errorf("doctor does not know %s", name)
			}
		}
	}
	for _, o := range fstab.Options {
		option := o.Name
		if o.Value != nil {
			option += "="
		}
		if err := (&Options{vfs: map[string]string{}}).set(option); err != nil && o.Value == nil {
			t.Errorf("mount does not know %s: %v", o.Name, err)
		}
	}
}
