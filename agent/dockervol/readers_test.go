package dockervol

import (
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestReadersOnly checks that a read-only volume is claimed for reading, with or without the option
// "ro".
func TestReadersOnly(t *testing.T) {
	w, s := newWorld(t)
	capability := func(modes ...call.AccessMode) (all []call.Capability) {
		for _, m := range modes {
			all = append(all, call.Capability{Access: m, Attachment: call.FileSystem})
		}
		return append(all, call.Capability{Access: call.SingleNodeWriter, Attachment: call.BlockDevice})
	}
	for name, c := range map[string]struct {
		modes    []call.AccessMode
		opts     opts
		readOnly bool
		refused  string
	}{
		"readers":              {[]call.AccessMode{call.SingleNodeReaderOnly}, nil, true, ""},
		"readers of hosts":     {[]call.AccessMode{call.SingleNodeReaderOnly, call.MultiNodeReaderOnly}, nil, true, ""},
		"readers by options":   {[]call.AccessMode{call.SingleNodeWriter, call.SingleNodeReaderOnly}, opts{"access_mode": "single-node-reader-only"}, true, ""},
		"a writer":             {[]call.AccessMode{call.SingleNodeReaderOnly, call.SingleNodeWriter}, opts{"rw": ""}, false, ""},
		"none of the mode":     {[]call.AccessMode{call.SingleNodeWriter}, opts{"access_mode": "multi-node-reader-only"}, false, ""},
		"writers, one reads":   {[]call.AccessMode{call.SingleNodeWriter}, opts{"ro": ""}, true, ""},
		"rw, and only readers": {[]call.AccessMode{call.SingleNodeReaderOnly}, opts{"rw": ""}, false, "permits only reading"},
	} {
		w.add(volume.Volume{ID: "data", PluginID: "p", Capabilities: capability(c.modes...)})
		err := s.Create(t.Context(), docker, "data", c.opts)
		if c.refused != "" {
			says(t, err, c.refused, "leave rw out")
			continue
		}
		must(t, err)
		w.mounted(s, "data", "web")
		if got := w.volumes["data"].Claims["docker"].ReadOnly; got != c.readOnly {
			t.Errorf("%s: claimed read-only: %t", name, got)
		}
		must(t, s.Unmount(t.Context(), docker, "data", "web"))
		must(t, s.Remove(t.Context(), docker, "data"))
	}
}
