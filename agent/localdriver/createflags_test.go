package localdriver

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volagent/volagent/agent/localdriver/request"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// TestCreateFlags checks that CreateVolume refuses mount flags with which the volume could never be
// mounted.
func TestCreateFlags(t *testing.T) {
	for name, c := range map[string]struct {
		typ, fsType string
		flags       []string
		// words of the expected error; if empty, the driver must accept the flags
		word string
	}{
		"a directory's own":      {store.TypeDirectory, "", []string{"ro", "noatime"}, ""},
		"of no file system":      {store.TypeDirectory, "", []string{"noatime", "discard"}, `mount flag "discard" belongs to a filesystem`},
		"of ext4":                {store.TypeImage, "ext4", []string{"noatime", "commit=30"}, ""},
		"of another file system": {store.TypeImage, "ext4", []string{"swalloc"}, `mount flag "swalloc" is refused by ext4`},
		"of xfs":                 {store.TypeImage, "xfs", []string{"swalloc"}, ""},
		"with a bad value":       {store.TypeImage, "ext4", []string{"commit=soon"}, `mount flag "commit=soon" is refused by ext4`},
		"of a kernel without it": {store.TypeImage, "nosuchfs", []string{"x"}, ""},
	} {
		err := request.CheckFlags(store.Volume{Type: c.typ, FSType: c.fsType}, []*csi.VolumeCapability{mountCap(writer, "", c.flags...)})
		switch {
		case c.word == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.word != "" && (status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.word)):
			t.Errorf("%s: %v, want %q", name, err, c.word)
		}
	}
	if err := request.CheckFlags(store.Volume{Type: store.TypeImage, Block: true}, []*csi.VolumeCapability{blockCap(writer)}); err != nil {
		t.Errorf("a raw volume: %v", err)
	}
	b := newBench(t)
	req := createReq("v", 0, nil, mountCap(writer, "", "discard"))
	if _, err := b.CreateVolume(t.Context(), req); status.Code(err) != codes.InvalidArgument {
		t.Errorf("created: %v", err)
	}
}
