package provision_test

import (
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestRegisterAsksForOtherModes checks that a register which changes capabilities or mount options
// asks the plugin first. A register that changes neither does not call the plugin.
func TestRegisterAsksForOtherModes(t *testing.T) {
	shared := existing()
	shared.Capabilities = append(shared.Capabilities[:1:1], call.Capability{Access: call.MultiNodeMultiWriter, Attachment: call.FileSystem})
	flags := existing()
	flags.MountOptions.MountFlags = []string{"noatime"}
	for name, file := range map[string]volume.Volume{"capabilities": shared, "mount options": flags} {
		w := newWorld()
		w.mustRegister(t, existing())
		before := w.volumes["data"]
		w.calls, w.validate = nil, made(volume.CodeUnverified, volume.RetryChange, true)
		for _, dry := range []bool{true, false} {
			_, _, err := w.service().Register(t.Context(), file, dry)
			want(t, name, err, volume.ErrRefused, `plugin "ebs" does not offer volume "vol-9" with these capabilities`)
		}
		equal(t, name+": calls", w.calls, []string{"validate vol-9", "validate vol-9"})
		equal(t, name+": the record", w.volumes["data"], before)

		w.view.Ready = false
		if _, ch, err := w.service().Register(t.Context(), file, false); err != nil || ch.Outcome != volume.Updated {
			t.Errorf("%s, of a plugin that is down: %+v, %v", name, ch, err)
		}
		w.view.Ready, w.calls = true, nil
		file.Reclaim = "delete"
		if _, _, err := w.service().Register(t.Context(), file, false); err != nil || len(w.calls) > 0 {
			t.Errorf("%s, with another reclaim: calls %q, %v", name, w.calls, err)
		}
	}
}
