package volume_test

import (
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/volume"
)

func TestCheckDriver(t *testing.T) {
	for name, bad := range map[string]string{
		"ebs.csi.aws.com": "", "a": "", "local.volagent-1": "", strings.Repeat("x", 63): "",
		"": "no name", strings.Repeat("x", 64): "no name", "-a": "no name", "a.": "no name", "a_b": "no name", "a b": "no name",
		"a\u202eb": "no name", "a\nb": "no name", "größe": "no name",
	} {
		checkInvalid(t, name, volume.CheckDriver(name), bad)
	}
}

func TestCheckLimits(t *testing.T) {
	fill := func(n int) map[string]string { return map[string]string{"k": strings.Repeat("x", n-1)} }
	for name, tt := range map[string]struct {
		v   volume.Volume
		bad string
	}{
		"at the limits": {volume.Volume{ExternalID: strings.Repeat("x", 128), SnapshotID: strings.Repeat("x", 128), Context: fill(4096), Parameters: fill(4096)}, ""},
		"external id":   {volume.Volume{ExternalID: strings.Repeat("x", 1025)}, "its external_id has 1025 bytes; at most 1024 are allowed"},
		"snapshot":      {volume.Volume{SnapshotID: strings.Repeat("x", 1025)}, "snapshot_id has 1025 bytes"},
		"clone":         {volume.Volume{CloneID: strings.Repeat("x", 1025)}, "clone_id has 1025 bytes"},
		"context":       {volume.Volume{Context: fill(4097)}, "its context has 4097 bytes; CSI allows 4096"},
		"parameters":    {volume.Volume{Parameters: fill(4097)}, "parameters has 4097 bytes"},
	} {
		checkInvalid(t, name, tt.v.CheckLimits(), tt.bad)
	}
}
