package filetree

import (
	"encoding/binary"
	"testing"
)

// FuzzGroupRights checks that groupRights returns the rights in the entry for the owning group.
// Without such an entry, groupRights must return no rights.
func FuzzGroupRights(f *testing.F) {
	f.Add([]byte{}, uint16(7))
	f.Add([]byte{2, 0, 0, 0, 4, 0, 5, 0, 0xff, 0xff, 0xff, 0xff}, uint16(5))
	f.Add([]byte{2, 0, 0, 0, 1, 0, 7, 0, 0xff, 0xff, 0xff, 0xff, 4, 0}, uint16(0xffff))
	f.Fuzz(func(t *testing.T, list []byte, rights uint16) {
		if got := groupRights(list); got > 7 || !hasOwn(list) && got != 0 {
			t.Errorf("%x allows %o", list, got)
		}
		entries := append([]byte{2, 0, 0, 0}, list[:len(list)/8*8]...)
		if hasOwn(entries) {
			return
		}
		whole := append(entries, 4, 0, byte(rights), byte(rights>>8), 0xff, 0xff, 0xff, 0xff)
		if got := groupRights(whole); got != uint32(rights&7) {
			t.Errorf("%x allows %o, not %o", whole, got, rights&7)
		}
	})
}

// hasOwn reports whether a list has an entry for the owning group.
func hasOwn(list []byte) bool {
	for at := 4; at+8 <= len(list); at += 8 {
		if binary.LittleEndian.Uint16(list[at:]) == 4 {
			return true
		}
	}
	return false
}
