package spec

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// derivedLength is the maximum length of a derived id, in bytes, without a number at its end.
const derivedLength = 64

// DeriveID returns a volume id for storage that has only an external id. If the external id is a valid
// volume id of at most 64 letters, digits, ".", "_" and "-", and taken returns false for it, it is the
// result. Otherwise, the result has "-" for each run of other characters, and ends in 8 digits that
// depend on the whole external id. So the same external id gives the same result, and different ones
// do not collide. The function taken reports whether an id is in use.
func DeriveID(external string, taken func(id string) bool) string {
	if plainID(external) && !taken(external) {
		return external
	}

	var b strings.Builder
	gap := false
	for _, r := range external {
		if !plainRune(r) {
			gap = true
			continue
		}
		if gap && b.Len() > 0 {
			b.WriteByte('-')
		}
		gap = false
		b.WriteRune(r)
	}

	sum := sha256.Sum256([]byte(external))
	end := hex.EncodeToString(sum[:4])
	// The end of a long name tells more than its start, which is often the path of a project.
	name := b.String()
	name = strings.TrimLeft(name[max(0, len(name)-(derivedLength-len(end)-1)):], "-._")
	if name == "" {
		name = "volume"
	}

	id := name + "-" + end
	for n := 2; taken(id); n++ {
		id = fmt.Sprintf("%s-%s-%d", name, end, n)
	}
	return id
}

// plainID reports whether an external id can be a volume id that needs no quotes in any place.
func plainID(external string) bool {
	other := func(r rune) bool { return !plainRune(r) }
	return CheckVolumeID(external) == nil && len(external) <= derivedLength &&
		!strings.ContainsFunc(external, other) && !strings.ContainsAny(external[:1], "-._")
}

func plainRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-'
}
