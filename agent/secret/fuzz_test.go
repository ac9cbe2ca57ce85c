package secret_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/secret"
	"github.com/volagent/volagent/volmgr/call"
)

// FuzzOpen checks that Open returns a sealed value only for the secret for which it was sealed.
// Open must refuse any other text, because a state database or backup may be damaged. No error may
// contain the value.
func FuzzOpen(f *testing.F) {
	for _, text := range []string{
		"", "..", "v1..", "v1.00000000.", "v2.00000000.AAAA", "v1.x.AAAA.", "v1.00000000." + strings.Repeat("A", 64), "v1.00000000.!", "\x00.\xff.\n",
	} {
		f.Add("data", "key", "hunter2hunter2", text, "data2", uint(20))
		f.Add(`a" of volume "b`, "key", "hunter2hunter2", text, "a", uint(0))
	}
	// In this sealed text, the last base64 character has unused bits.
	f.Add("data", "key", "hunter2hunter22", "", "x", uint(len("v1.01234567.")+74-1))
	dir := f.TempDir()
	s := &secret.Sealer{Credentials: dir, KeyFile: filepath.Join(dir, "keys", "secrets.key")}
	f.Fuzz(func(t *testing.T, id, name, value, text, other string, at uint) {
		if value == "" {
			return
		}
		sealed, err := s.Seal(id, refs{name: {Literal: call.NewSecret(value)}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		good := sealed[name].Sealed
		if got, err := s.Open(id, name, good); err != nil || got.Reveal() != value {
			t.Errorf("%q became %q, %v", value, got.Reveal(), err)
		}
		i := int(at % uint(len(good)))
		damaged := good[:i] + string(rune(good[i]+1)) + good[i+1:]
		for _, bad := range []struct{ id, name, text string }{{id, name, text}, {id, other, good}, {other, name, good}, {other, other, good}, {id, name, good[:i]}, {name, id, good}, {id, name, damaged}, {id, name, good + "\n"}} {
			if bad.id == id && bad.name == name && bad.text == good {
				continue
			}
			got, err := s.Open(bad.id, bad.name, bad.text)
			if err == nil {
				t.Errorf("%+v opens as %q", bad, got.Reveal())
			}
			if err != nil && len(value) >= 8 && !strings.Contains(text+id+name+"the sealed value is damaged", value) && strings.Contains(err.Error(), value) {
				t.Errorf("the error is %v", err)
			}
		}
	})
}
