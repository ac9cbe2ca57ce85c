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

// FuzzCluster checks that readCluster either accepts a section or returns an error with the name of
// the file. If readCluster accepts a section, it must read the output of describe as the same section.
func FuzzCluster(f *testing.F) {
	for _, text := range []string{
		"a", "[a]", "endpoints: [https://a:1]", "endpoints: [https://a:1, *x]", "endpoints: &x [https://a:1]\nprefix: *x", "? [x]\n: y",
		"endpoints: [https://a:1]\nsecrets: {files: [/a, \"/\\x01\\u00e9'\"], credentials: [\"\\xff\"], env: [A]}", "<<: {ca: /x}",
		"endpoints: ['http://[::1]:1']\nuser: \"\\u0085\"\npassword: {env: A}", "endpoints: [https://a:1]\npassword: !!null {env: A}",
		"endpoints: [https://a:1]\nuser: \u00e9\npassword: {credential: \"a\\\"b\"}\nboot: trust-local", "endpoints: !!binary aGk=",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		root, err := rootOf("c.yaml", []byte(text))
		if root == nil || err != nil {
			return
		}

		c, err := readCluster("c.yaml", root)
		if err != nil {
			if !errors.Is(err, volume.ErrInvalid) || !strings.HasPrefix(err.Error(), "c.yaml:") {
				t.Errorf("%q: %v", text, err)
			}
			return
		}

		var out strings.Builder
		if err := c.describe(&out); err != nil {
			t.Fatal(err)
		}
		file, err := parse("c.yaml", []byte(out.String()))
		if err != nil {
			t.Fatalf("%q: %v\n%s", text, err, out.String())
		}
		again, err := readCluster("c.yaml", file.cluster)
		if err != nil || !(Config{Cluster: again}).Equal(Config{Cluster: c}) {
			t.Errorf("%q: %v\n%s", text, err, out.String())
		}
	})
}
