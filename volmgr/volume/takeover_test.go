package volume_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestCheckTakeover checks which values of takeover a volume can have.
func TestCheckTakeover(t *testing.T) {
	for _, tt := range []struct {
		name     string
		takeover volume.Takeover
		shared   bool
		kind     error
		words    string
	}{
		{"the default", volume.TakeoverProven, true, nil, ""},
		{"the default of a volume of one host", volume.TakeoverProven, false, nil, ""},
		{"never", volume.TakeoverNever, true, nil, ""},
		{"a volume of one host", volume.TakeoverNever, false, volume.ErrRefused, "its scope is host"},
		{"another word", "always", true, volume.ErrInvalid, "it is never or proven"},
	} {
		v := sharedVolume()
		v.Takeover, v.Shared = tt.takeover, tt.shared
		err := errors.Join(v.Check(), v.CheckTakeover())
		if !errors.Is(err, tt.kind) || err != nil && !strings.Contains(err.Error(), tt.words) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// TestChangeTakeover checks that a registered file changes takeover while the volume is in use, in both
// directions, and that a create with another value differs.
func TestChangeTakeover(t *testing.T) {
	for _, to := range []volume.Takeover{volume.TakeoverNever, volume.TakeoverProven} {
		old, spec := sharedVolume(), sharedVolume()
		old.Takeover, spec.Takeover = volume.TakeoverNever, to
		want := []string{`takeover: "never" → "proven"`}
		if to == volume.TakeoverNever {
			old.Takeover, want = volume.TakeoverProven, []string{`takeover: "proven" → "never"`}
		}

		now, changes, err := volume.Merge(volume.Record{Volume: old}, spec)
		if err != nil || now.Takeover != to || !slices.Equal(changes, want) {
			t.Errorf("register: %q, %q, %v", now.Takeover, changes, err)
		}
		if got := old.Differences(spec); !slices.Equal(got, want) {
			t.Errorf("create: %q", got)
		}
	}
}

func sharedVolume() volume.Volume {
	return volume.Volume{
		ID: "db", PluginID: "p", Driver: "d", ExternalID: "e", Shared: true,
		Capabilities: []call.Capability{{Access: call.SingleNodeWriter, Attachment: call.FileSystem}},
	}
}
