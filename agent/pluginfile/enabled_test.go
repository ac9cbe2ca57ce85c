package pluginfile

import (
	"strings"
	"testing"
)

// TestSetEnabled checks that SetEnabled changes the key enabled, and no other byte.
func TestSetEnabled(t *testing.T) {
	const rest = "exec:   # how\n  command: [/x, \"é\"]\n\n# the end"
	for _, tt := range []struct {
		text string
		on   bool
		want string
	}{
		{"id: x\nenabled: false   # until then\n" + rest, true, "id: x\nenabled: true   # until then\n" + rest},
		{"id: x\nenabled: true\n" + rest, false, "id: x\nenabled: false\n" + rest},
		{"id: x\nenabled: true\n" + rest, true, "id: x\nenabled: true\n" + rest},
		{"# first\nid: x\n" + rest, false, "# first\nenabled: false\nid: x\n" + rest},
		{"# first\nid: x\n" + rest, true, "# first\nid: x\n" + rest},
		{"---\nid: x\r\nenabled: false\r\nsocket: /s\r\n", true, "---\nid: x\r\nenabled: true\r\nsocket: /s\r\n"},
		{"{id: x, enabled: false, socket: /s}", true, "{id: x, enabled: true, socket: /s}"},
		// A comment and another value contain the words.
		{"# enabled: false\nid: x\nexec: {command: [/x, 'enabled: false']}\nenabled: false\n", true, "# enabled: false\nid: x\nexec: {command: [/x, 'enabled: false']}\nenabled: true\n"},
		// A disabled file may have placeholders.
		{"id: x\nenabled: false\nexec: {command: [/x, " + Placeholder("url") + "]}\n", false, "id: x\nenabled: false\nexec: {command: [/x, " + Placeholder("url") + "]}\n"},
	} {
		got, err := SetEnabled("f.yaml", []byte(tt.text), tt.on)
		if err != nil || string(got) != tt.want {
			t.Errorf("%q, %t: %q, %v", tt.text, tt.on, got, err)
		}
	}
	for text, words := range map[string]string{
		"id: x\nenabled: maybe\nsocket: /s\n":    `f.yaml:2: "enabled" is "maybe"; it can be true, false`,
		"id: x\nenabled: 'false'\nsocket: /s\n":  "", // the quotes stay, and the parser reads the word
		"id: x\nsocket: [\n":                     "f.yaml:",
		"{id: x, socket: /s}":                    "do not begin at the first column",
		"id: x\nenabled: &a false\nsocket: /s\n": "is not a plain word",
	} {
		_, err := SetEnabled("f.yaml", []byte(text), !strings.HasPrefix(text, "{"))
		if (err == nil) != (words == "") || err != nil && !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v, want %q", text, err, words)
		}
	}
}

// TestPlaceholders checks that only a disabled file may have values that are not filled in.
func TestPlaceholders(t *testing.T) {
	text := "id: x\nexec:\n  command: [/x, --url=" + Placeholder("url") + "]   # " + Placeholder("comment") + "\n"
	_, _, err := Parse("f.yaml", []byte(text))
	if err == nil || !strings.Contains(err.Error(), `f.yaml:3: the value "url" is not filled in; replace <FILL-IN-url>`) {
		t.Errorf("an enabled file: %v", err)
	}
	id, def, err := Parse("f.yaml", []byte(text+"enabled: false\n"))
	if err != nil || id != "x" || !def.Disabled || Settings(def)["enabled"] != "false" {
		t.Errorf("a disabled file: %q, %+v, %v", id, def, err)
	}
	if got := strings.Join(Placeholders(text), " "); got != "url comment" {
		t.Errorf("placeholders: %q", got)
	}
}

// FuzzSetEnabled checks that SetEnabled changes only the key enabled, or returns an error.
func FuzzSetEnabled(f *testing.F) {
	f.Add("id: x\nenabled: false\nsocket: /s\n", true)
	f.Add("# é\nid: x\r\nsocket: /s", false)
	f.Add("{id: é, enabled: \"true\", socket: /s}", false)
	f.Add("id: x\nsocket: /s\nenabled: !!str false\n", true)
	f.Add("---\n'id': x\nsocket: /s\n...\n", false)
	f.Add("&a enabled: true\nid: x\nsocket: /s\n", false)
	f.Fuzz(func(t *testing.T, content string, on bool) {
		_, before, err := parse("f.yaml", []byte(content))
		got, setErr := SetEnabled("f.yaml", []byte(content), on)
		if err != nil || setErr != nil {
			if setErr == nil {
				t.Fatalf("%q: a bad file was changed to %q", content, got)
			}
			return
		}
		_, after, err := parse("f.yaml", got)
		if err != nil || after.Disabled == on || !sameButEnabled(before, after) {
			t.Fatalf("%q became %q: %v", content, got, err)
		}
		if grown := len(got) - len(content); grown < -1 || grown > len("enabled: false\n") {
			t.Fatalf("%q became %q", content, got)
		}
	})
}
