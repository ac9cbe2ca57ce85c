package dockervol

import (
	"testing"

	"github.com/volagent/volagent/volmgr/volume"
)

// TestReadersOnly checks that a volume that can only be read is claimed for reading, with or
// without "ro".
func TestReadersOnly(t *testing.T) {
	w, s := newWorld(t)
	capability := func(modes ...volume.AccessMode) (all []volume.Capability) {
		for _, m := range modes {
			all = append(all, volume.Capability{Access: m, Attachment: volume.FileSystem})
		}
		return append(all, volume.Capability{Access: volume.SingleNodeWriter, Attachment: volume.BlockDevice})
	}
	for name, c := range map[string]struct {
		modes    []volume.AccessMode
		opts     opts
		readOnly bool
		refused  string
	}{
		"readers":              {[]volume.AccessMode{volume.SingleNodeReaderOnly}, nil, true, ""},
		"readers of hosts":     {[]volume.AccessMode{volume.SingleNodeReaderOnly, volume.MultiNodeReaderOnly}, nil, true, ""},
		"readers by options":   {[]volume.AccessMode{volume.SingleNodeWriter, volume.SingleNodeReaderOnly}, opts{"access_mode": "single-node-reader-only"}, true, ""},
		"a writer":             {[]volume.AccessMode{volume.SingleNodeReaderOnly, volume.SingleNodeWriter}, opts{"rw": ""}, false, ""},
		"none of the mode":     {[]volume.AccessMode{volume.SingleNodeWriter}, opts{"access_mode": "multi-node-reader-only"}, false, ""},
		"writers, one reads":   {[]volume.AccessMode{volume.SingleNodeWriter}, opts{"ro": ""}, true, ""},
		"rw, and only readers": {[]volume.AccessMode{volume.SingleNodeReaderOnly}, opts{"rw": ""}, false, "permits only reading"},
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
		must(t, s.Remove(t.Context(), "docker", "data"))
	}
}
