package volume_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestCheckBoot checks for which volumes a host may use its hold after a reboot without an answer of the
// cluster, and the reasons of the refusals.
func TestCheckBoot(t *testing.T) {
	files := func(access call.AccessMode) []call.Capability {
		return []call.Capability{{Access: access, Attachment: call.FileSystem}}
	}
	for _, tt := range []struct {
		name   string
		change func(*volume.Volume, *plugin.Info)
		kind   error
		words  string
	}{
		{"many writers", func(*volume.Volume, *plugin.Info) {}, nil, ""},
		{"many readers", func(v *volume.Volume, _ *plugin.Info) { v.Capabilities = files(call.MultiNodeReaderOnly) }, nil, ""},
		{"one writer", func(v *volume.Volume, _ *plugin.Info) { v.Capabilities = files(call.SingleNodeWriter) }, volume.ErrInvalid, "another host may use the volume alone"},
		{"one writer beside readers", func(v *volume.Volume, _ *plugin.Info) { v.Capabilities = files(call.MultiNodeSingleWriter) }, volume.ErrInvalid, "another host may use the volume alone"},
		{"one of several modes", func(v *volume.Volume, _ *plugin.Info) {
			v.Capabilities = append(v.Capabilities, files(call.SingleNodeWriter)...)
		}, volume.ErrInvalid, "another host may use the volume alone"},
		{"a block device", func(v *volume.Volume, _ *plugin.Info) { v.Capabilities[0].Attachment = call.BlockDevice }, volume.ErrInvalid, "block-device"},
		{"an attachment", func(_ *volume.Volume, p *plugin.Info) { p.Caps.Attach = true }, volume.ErrRefused, "needs ControllerPublishVolume"},
		{"a volume of one host", func(v *volume.Volume, _ *plugin.Info) { v.Shared = false }, volume.ErrRefused, "its scope is host"},
		{"another word", func(v *volume.Volume, _ *plugin.Info) { v.Boot = "trust" }, volume.ErrInvalid, "it is wait or trust-local"},
		{"no trust", func(v *volume.Volume, p *plugin.Info) {
			v.Boot, v.Capabilities, p.Caps.Attach = volume.BootWait, files(call.SingleNodeWriter), true
		}, nil, ""},
	} {
		v := volume.Volume{
			ID: "db", PluginID: "p", Driver: "d", ExternalID: "e", Shared: true, Boot: volume.BootTrustLocal, Capabilities: files(call.MultiNodeMultiWriter),
		}
		p := plugin.Info{Driver: "d"}
		tt.change(&v, &p)
		err := errors.Join(v.Check(), v.CheckBoot(p))
		if !errors.Is(err, tt.kind) || err != nil && !strings.Contains(err.Error(), tt.words) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
