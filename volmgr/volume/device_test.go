package volume_test

import (
	"encoding/json"
	"testing"

	"github.com/volagent/volagent/volmgr/volume"
)

// TestDeviceText checks that stored devices can be parsed. Some older releases stored devices
// without a sequence number.
func TestDeviceText(t *testing.T) {
	for text, want := range map[string]volume.Device{
		`"7:15"`:     {Number: "7:15"},
		`"7:15#109"`: {Number: "7:15", Disk: 109},
	} {
		var got volume.Device
		if err := json.Unmarshal([]byte(text), &got); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
		if raw, err := json.Marshal(got); err != nil || string(raw) != text {
			t.Errorf("%s is stored as %s, %v", text, raw, err)
		}
	}
	for _, bad := range []string{`"7:15#"`, `"7:15#x"`, `"7:15#-1"`, `"7:15#1#2"`} {
		var got volume.Device
		if err := json.Unmarshal([]byte(bad), &got); err == nil {
			t.Errorf("%s: got %+v", bad, got)
		}
	}
}
