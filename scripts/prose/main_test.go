package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestExamples checks that the bad example of each rule breaks the rule, and that the good example
// breaks no rule.
func TestExamples(t *testing.T) {
	for i := range rules {
		r := &rules[i]
		t.Run(r.name, func(t *testing.T) {
			if r.breaks(r.bad) == 0 {
				t.Errorf("%q does not break the rule", r.bad)
			}
			for j := range rules {
				if rules[j].breaks(r.good) > 0 {
					t.Errorf("%q breaks the rule %q", r.good, rules[j].name)
				}
			}
		})
	}
}

func TestExceptions(t *testing.T) {
	for _, s := range []string{
		"The message says what happened and what to do.",
		"What is a claim?",
		"The process runs as nobody, or uid=nobody.",
		"It keeps no more than five files.",
		"There are no more files.",
		"The process, which has no mount, ends.",
	} {
		for i := range rules {
			if rules[i].breaks(s) > 0 {
				t.Errorf("%q breaks the rule %q", s, rules[i].name)
			}
		}
	}
}

const source = `// Package p does one thing.
//
// It has a second paragraph. And a second sentence.
//
//	indented lines are code
package p

import "some/path with three words"

type t struct {
	a int ` + "`json:\"a tag of words\"`" + `
}

//go:generate this directive is left out
func f(n int) string {
	_ = "short"
	return "the first half, " + string(rune(n)) + " and the second" // Says so.
}
`

func TestGoTexts(t *testing.T) {
	texts, err := goTexts("p/p.go", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	lines := 0
	for _, x := range texts {
		got = append(got, x.words)
		lines += x.lines
	}
	want := []string{
		"Package p does one thing.", "It has a second paragraph. And a second sentence.", "Says so.",
		"the first half, X and the second",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if lines != 6 {
		t.Errorf("%d comment lines, want 6", lines)
	}

	texts, err = goTexts("p/p_test.go", []byte(source))
	if err != nil || len(texts) != 3 {
		t.Errorf("of a test: %d texts, want the 3 comments, %v", len(texts), err)
	}
}

func TestPageTexts(t *testing.T) {
	src := "# A heading\n\nA paragraph of\ntwo lines with `code`.\n\n```\nskipped\n```\n- an [item](x.md)\n\n| a | b |\n"
	var got []string
	for _, x := range pageTexts("a.md", src) {
		got = append(got, x.words)
	}
	want := []string{"A heading", "A paragraph of two lines with X.", "an item", "a", "b"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func TestSentences(t *testing.T) {
	got := sentences(`It writes "a." Then e.g. v1.2 follows. X? Yes.`)
	want := []string{`It writes "a.`, `" Then e.g. v1.2 follows.`, "X?", "Yes."}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// TestRatchet checks that counts may fall, or move to another directory, but that the total may not
// rise.
func TestRatchet(t *testing.T) {
	dir := t.TempDir()
	base := filepath.Join(dir, "baseline.txt")
	tree := func(files map[string]string) (counts, []finding) {
		t.Helper()
		var texts []text
		for name, src := range files {
			read, err := goTexts(name, []byte(src))
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, read...)
		}
		found := check(texts)
		return count(texts, found), found
	}
	const bad, good = "// F takes what is there.\npackage p\n", "// F takes the mount.\npackage p\n"
	steps := []struct {
		name   string
		files  map[string]string
		update bool
		err    string
	}{
		{"first", map[string]string{"a/a.go": bad + "// Nobody reads it.\n", "b/b.go": good}, true, ""},
		{"as recorded", map[string]string{"a/a.go": bad + "// Nobody reads it.\n", "b/b.go": good}, false, ""},
		{"a new one", map[string]string{"a/a.go": bad + "// Nobody reads it.\n", "b/b.go": bad}, false, "b from 0 to 1"},
		{"a new one cannot be recorded", map[string]string{"a/a.go": bad + "// Nobody reads it.\n", "b/b.go": bad}, true, "rose from 2 to 3"},
		{"moved to a new package", map[string]string{"a/a.go": bad, "c/c.go": "package c\n// Nobody reads it.\n"}, false, "c from 0 to 1"},
		{"a move is recorded", map[string]string{"a/a.go": bad, "c/c.go": "package c\n// Nobody reads it.\n"}, true, ""},
		{"rewritten", map[string]string{"a/a.go": bad, "c/c.go": good}, false, "fewer findings than recorded in c"},
		{"rewritten and recorded", map[string]string{"a/a.go": bad, "c/c.go": good}, true, ""},
		{"deleted", map[string]string{"c/c.go": good}, false, "fewer findings than recorded in a"},
	}
	for _, s := range steps {
		now, found := tree(s.files)
		var out bytes.Buffer
		err := ratchet(base, now, found, s.update, &out)
		if s.err == "" && err != nil || s.err != "" && (err == nil || !strings.Contains(err.Error(), s.err)) {
			t.Errorf("%s: got %v, want %q\n%s", s.name, err, s.err, out.String())
		}
	}

	if err := os.WriteFile(base, []byte("many a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ratchet(base, counts{}, nil, false, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "is not a count") {
		t.Errorf("a damaged baseline: %v", err)
	}
}

func TestSubject(t *testing.T) {
	for subject, want := range map[string]string{
		"Report how a unit ended when systemd restarted it first":     "",
		"volmgr/mount: read mount tables in bounded memory":           "",
		"Embed the OpenAPI document":                                  "",
		"Added a flag":                                                "imperative",
		"cli: fixing a typo":                                          "imperative",
		"Show what is there":                                          "headless",
		"Report the state.":                                           "full stop",
		"Report " + strings.Repeat("the state of the volume and ", 4): "at most 90",
	} {
		err := checkSubject(subject)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want %q", subject, err, want)
		}
	}
}
