package config

import (
	"errors"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/volume"
)

// FuzzConfig checks that parse either accepts a text or returns an error with the file's name, and
// that only known keys get values.
func FuzzConfig(f *testing.F) {
	for _, text := range []string{
		"", "# nothing\n", "---\n", "--- null\n", "log_level: warn\n", "log_level: warn\nlog_level: info\n", "nonsense: 1", "Socket: /x", "socket: [a]", "socket: {a: b}", "[a]", "a", "socket: *x", "&a socket: *a", "<<: {socket: /x}", "? [x]\n: y",
		"socket: !!binary aGk=", "socket: ~", "%YAML 9\n---\na", "\xff", "socket: a\n---\nsocket: b\n", "socket: |\n a\n b\n", "\ufeffsocket: a",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		file, err := parse("c.yaml", []byte(text))
		if err != nil && (!errors.Is(err, volume.ErrInvalid) || !strings.HasPrefix(err.Error(), "c.yaml:")) {
			t.Errorf("%q: %v", text, err)
		}
		for key, value := range file.values {
			known := false
			for _, s := range settings {
				known = known || s.key == key
			}
			if _, plain := value.(string); !known || !plain || file.lines[key] < 1 {
				t.Errorf("%q: %q is %v, of line %d", text, key, value, file.lines[key])
			}
		}
	})
}
