package volume_test

import (
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestCreateAgain checks the commands that continue an unfinished create. The user had requested
// the create without a volume file.
func TestCreateAgain(t *testing.T) {
	writer := []call.Capability{{Access: call.SingleNodeWriter, Attachment: call.FileSystem}}
	for want, v := range map[string]volume.Volume{
		"volctl volume create data --plugin=local": {ID: "data", PluginID: "local", Capabilities: writer},
		"volctl volume create data --plugin=local --size=1GiB --param=type=image '--param=x=a b'": {
			ID: "data", PluginID: "local", Capabilities: writer, CapacityMin: 1 << 30, Parameters: map[string]string{"type": "image", "x": "a b"},
		},
		"volctl volume create FILE, with the file of the first time": {ID: "data", PluginID: "local", Capabilities: append(writer, writer...)},
	} {
		v.Provision = volume.Provisioning
		e := volume.Explain(volume.Record{Volume: v}, volume.Observed{}, nil)
		if suggest.Words(e.Fix) != want {
			t.Errorf("%s\nwant %s", suggest.Words(e.Fix), want)
		}
	}
}
