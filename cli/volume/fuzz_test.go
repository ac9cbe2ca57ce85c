package volume

import (
	"fmt"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
)

// FuzzOwner checks that parseOwner sets exactly the fields that belong to the owner's kind. It also
// checks that a parsed owner can be converted to a text and parsed again without a change.
func FuzzOwner(f *testing.F) {
	for _, text := range []string{"none", "pid:1", "pid:", "pid:-1", "pid:+1", "pid:0x1", "pid:1 ", "unit:", "unit:a", "unit:a.scope", "unit:a:b", "mount:1", ":", "", "unit:\x00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_ = serviceFromCgroup(text) // the call must not panic or hang
		o, err := parseOwner(text)
		var again string
		switch {
		case err != nil:
			return
		case o == api.Owner{Kind: api.OwnerNone}:
			again = "none"
		case o == api.Owner{Kind: api.OwnerPID, PID: o.PID} && o.PID > 0:
			again = fmt.Sprintf("pid:%d", o.PID)
		case o == api.Owner{Kind: api.OwnerUnit, Unit: o.Unit} && strings.Contains(o.Unit, "."):
			again = "unit:" + o.Unit
		}
		if same, err := parseOwner(again); err != nil || same != o {
			t.Errorf("%q is %+v, and then %+v, %v", text, o, same, err)
		}
	})
}
