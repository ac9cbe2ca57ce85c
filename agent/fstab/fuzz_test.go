package fstab

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// escape escapes a field for fstab(5).
func escape(field string) string {
	return strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`, "#", `\043`).Replace(field)
}

// hostile lists volume names and options that a parser could misread.
var hostile = []string{
	"data", "my data", "a\tb", "a\nb csi", `a\040b`, `a\`, "#", "a\u00a0b", "a\rb\vc\fd", "\xff\xfe", "größe\u2003x", "csi", `"a,b"`, "100%", "%h", "\x00", "-", "[Mount]",
}

// FuzzTable checks that parseTable returns the exact fields of an entry with arbitrary names, and
// that the entries before and after it do not change. Arbitrary bytes must not cause a panic.
func FuzzTable(f *testing.F) {
	for _, name := range hostile {
		f.Add(name, "/"+name, "_netdev,"+name, []byte(name+" /x csi "+name))
	}
	f.Add("a", "/b", `comment="a,b",,ro`, []byte("a /b csi ro\r\n# c /d csi ro\n\t e /f csi\n"))
	f.Fuzz(func(t *testing.T, volume, dir, options string, raw []byte) {
		for _, e := range parseTable("f", raw) {
			line := strings.Split(string(raw), "\n")[e.Line-1]
			if e.Volume == "" || e.Dir == "" || !strings.Contains(line, Type) {
				t.Errorf("line %q is read as %+v", line, e)
			}
		}
		if volume == "" || dir == "" || options == "" {
			return
		}
		table := fmt.Sprintf("x /x csi ro\n%s\t%s csi %s 0 0\nz /z csi\n", escape(volume), escape(dir), escape(options))
		got := parseTable("f", []byte(table))
		want := []Entry{
			{File: "f", Line: 1, Volume: "x", Dir: "/x", Options: []string{"ro"}},
			{File: "f", Line: 2, Volume: volume, Dir: dir, Options: SplitOptions(options)},
			{File: "f", Line: 3, Volume: "z", Dir: "/z"},
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q\n%+v\nwant\n%+v", table, got, want)
		}
	})
}

// FuzzUnit checks that settings joins continued lines and returns each setting with the value that
// was written. The time to read a unit must depend only on the unit's length.
func FuzzUnit(f *testing.F) {
	for _, name := range hostile {
		f.Add(name, name, "[Mount]\nType=csi\nWhat="+name+"\n"+name)
	}
	f.Add("a", "b", "[Mount]\nType=csi\\\n# x\n\n;y\nWhat=a\\")
	f.Add(`a\\`, "b", strings.Repeat("\\\n", maxFile/2))
	f.Fuzz(func(t *testing.T, first, second, raw string) {
		for key := range settings(raw) {
			if strings.ContainsAny(key, "\n=") && !strings.Contains(raw, "[") {
				t.Errorf("%q: a setting %q", raw, key)
			}
		}
		trimmed := func(text string) bool {
			return strings.Trim(text, blank) == text && !strings.ContainsAny(text, "\n") && !strings.HasSuffix(text, `\`)
		}
		if !trimmed(first) || !trimmed(second) || strings.HasPrefix(second, "#") || strings.HasPrefix(second, ";") {
			return
		}
		text := fmt.Sprintf("[Unit]\nAfter=%s\\\\\n[Mount]\nWhat=%s\\\n  # a comment\n  %s\nType=csi", second, first, second)
		var got []string
		for key, value := range settings(text) {
			got = append(got, key, value)
		}
		joined := strings.Trim(first+" "+second, blank)
		if want := []string{"Unit.After", second + `\\`, "Mount.What", joined, "Mount.Type", "csi"}; !slices.Equal(got, want) {
			t.Errorf("%q\n%q\nwant\n%q", text, got, want)
		}
	})
}

// FuzzOptions splits a list of options, joins the parts, and splits the result again. The options
// must stay the same. A quoted comma must stay inside its option, and no byte may be lost.
func FuzzOptions(f *testing.F) {
	for _, name := range hostile {
		f.Add(name)
	}
	for _, text := range []string{`a="b,c",d`, `"`, `a,"b`, ` a , b `, ",,", `a="`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		options := SplitOptions(text)
		var quoted []string
		for _, o := range options {
			if o == "" || strings.TrimSpace(o) != o || strings.Contains(o, `"`) {
				t.Errorf("%q has the option %q", text, o)
			}
			_ = CheckOption(o) // CheckOption must not panic
			quoted = append(quoted, `"`+o+`"`)
		}
		if again := SplitOptions(strings.Join(quoted, ",")); !slices.Equal(again, options) {
			t.Errorf("%q is %q, and then %q", text, options, again)
		}
		if !strings.ContainsAny(text, `",`) && strings.TrimSpace(text) != "" && !slices.Equal(options, []string{strings.TrimSpace(text)}) {
			t.Errorf("%q is %q", text, options)
		}
	})
}

// TestPercent checks that readUnit replaces a double percent sign by a single percent sign.
func TestPercent(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "d.mount"), "[Mount]\nWhat=100%%\nWhere=/a%%b\nType=csi\nOptions=alloc=x%%\n")
	got, err := Read(Files{Fstab: filepath.Join(dir, "none"), Units: []string{dir}})
	if err != nil || len(got) != 1 || got[0].Volume != "100%" || got[0].Dir != "/a%b" || !slices.Equal(got[0].Options, []string{"alloc=x%"}) {
		t.Errorf("%+v, %v", got, err)
	}
}
