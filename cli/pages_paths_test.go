package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	inTree   = regexp.MustCompile(`^(\./)?(agent|cli|cmd|docs|packaging|scripts|statedb|volmgr)/`)
	testName = regexp.MustCompile(`^(Test|Fuzz|Benchmark)[A-Z]\w*$`)
	declared = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
)

// forDevelopers reports whether a page is for developers of this project.
func forDevelopers(page string) bool {
	return page == "../docs/HACKING.md" || page == "../docs/ARCHITECTURE.md" || strings.HasPrefix(page, "../docs/design/")
}

// eachCodeWord calls each for every word in backticks on a page.
func eachCodeWord(page string, each func(word string)) {
	for _, m := range code.FindAllStringSubmatch(page, -1) {
		for word := range strings.FieldsSeq(m[1]) {
			each(word)
		}
	}
}

// exists reports whether the project contains a file or directory that matches a pattern. The
// pattern is relative to the root of the project.
func exists(path string) bool {
	found, err := filepath.Glob(filepath.Join("..", path))
	return err == nil && len(found) > 0
}

// TestPathsInPages checks the names of files, packages and tests on the pages for developers. Each
// of them must exist.
func TestPathsInPages(t *testing.T) {
	tests := map[string]bool{}
	walkTree(t, func(path string) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range declared.FindAllStringSubmatch(string(source), -1) {
			tests[m[1]] = true
		}
	})

	paths := 0
	for page, text := range pages(t) {
		if !forDevelopers(page) {
			continue
		}
		eachCodeWord(text, func(word string) {
			if inTree.MatchString(word) {
				if paths++; !exists(word) {
					t.Errorf("%s: the project has no %s", page, word)
				}
			}
			if testName.MatchString(word) && !tests[word] {
				t.Errorf("%s: the project has no test %s", page, word)
			}
		})
	}
	if paths < 100 {
		t.Errorf("only %d paths were found", paths)
	}
	for path, want := range map[string]bool{"cli/pages_test.go": true, "./cli/": true, "cmd/volagent/test/crash/*_test.go": true, "cli/no.go": false, "cli/nothing*.go": false} {
		if exists(path) != want {
			t.Errorf("%s exists: %v, want %v", path, !want, want)
		}
	}
}
