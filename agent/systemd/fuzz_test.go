package systemd

import (
	"fmt"
	"strings"
	"testing"
)

// FuzzUnescape checks that unescape recovers the name of a unit from its object path, as systemd
// encodes it.
func FuzzUnescape(f *testing.F) {
	for _, name := range []string{"web.service", "a_b-c@1.service", `srv-my\x20data.mount`, "1.scope", "_", "_2", "_2e", "é.service", "\xff"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		_ = unescape(name) // for any name, unescape must return without a panic
		var path strings.Builder
		for i := range len(name) {
			c := name[i]
			letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
			if letter || i > 0 && c >= '0' && c <= '9' {
				path.WriteByte(c)
				continue
			}
			fmt.Fprintf(&path, "_%02x", c)
		}
		if got := unescape(path.String()); got != name {
			t.Errorf("%q became %q", name, got)
		}
	})
}
