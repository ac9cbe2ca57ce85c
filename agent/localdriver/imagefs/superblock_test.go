package imagefs

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/volagent/volagent/agent/localdriver/sandbox"
)

// FuzzSuperblock checks that the size that is read from a superblock is plausible, for any content
// of the superblock.
func FuzzSuperblock(f *testing.F) {
	good := make([]byte, 1024)
	binary.LittleEndian.PutUint16(good[0x38:], 0xef53)
	binary.LittleEndian.PutUint32(good[4:], 1<<20)
	binary.LittleEndian.PutUint32(good[0x18:], 2)
	f.Add(good)
	for _, log := range []uint32{7, 53, 60, math.MaxUint32} {
		bad := slices.Clone(good)
		binary.LittleEndian.PutUint32(bad[0x18:], log)
		f.Add(bad)
	}
	large := slices.Clone(good)
	binary.LittleEndian.PutUint32(large[0x60:], 0x80)
	binary.LittleEndian.PutUint32(large[0x150:], math.MaxUint32)
	f.Add(large)
	f.Fuzz(func(t *testing.T, raw []byte) {
		file := filepath.Join(t.TempDir(), "image")
		sandbox.Must(t, os.WriteFile(file, append(make([]byte, 1024), raw...), 0o600))
		size, err := ext4Size(file)
		if err == nil && (size < 0 || size%1024 != 0 || len(raw) < 1024 || binary.LittleEndian.Uint32(raw[0x18:]) > 6) {
			t.Errorf("it has %d bytes", size)
		}
		if slices.Equal(raw, good) && size != 4<<30 {
			t.Errorf("%d bytes, %v", size, err)
		}
		_, _ = RootInode("xfs", file)
	})
}
