package cli

import (
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// pages returns the Markdown files of the project without their code blocks. The keys are paths.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	walkTree(t, func(path string) {
		if filepath.Ext(path) != ".md" {
			return
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[path] = fence.ReplaceAllString(string(text), "")
	})
	return all
}

// walkTree calls each with the path of every file in the project.
func walkTree(t *testing.T, each func(path string)) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "bin" || d.Name() == "dist"):
			return fs.SkipDir
		case !d.IsDir():
			each(path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

var (
	fence    = regexp.MustCompile("(?ms)^```.*?^```$")
	linked   = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	headings = regexp.MustCompile(`(?m)^#+ (.*)$`)
	marks    = regexp.MustCompile("[`*]|\\]\\([^)]*\\)|\\[")
)

// anchors returns the anchors that GitHub creates for the headings of a page.
func anchors(page string) map[string]bool {
	all, seen := map[string]bool{}, map[string]int{}
	for _, m := range headings.FindAllStringSubmatch(page, -1) {
		a := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			default:
				return -1
			}
		}, marks.ReplaceAllString(m[1], ""))
		if n := seen[a]; n > 0 {
			all[a+"-"+strconv.Itoa(n)] = true
		}
		seen[a]++
		all[a] = true
	}
	return all
}

// broken returns the reason why a link on a page is broken, or "" if the link works.
func broken(all map[string]string, page, to string) string {
	u, err := url.Parse(to)
	switch {
	case err != nil:
		return err.Error()
	case u.Scheme != "":
		return "" // the test does not use the network
	}
	target := page
	if u.Path != "" {
		target = filepath.Join(filepath.Dir(page), u.Path)
		if _, err := os.Stat(target); err != nil {
			return err.Error()
		}
	}
	if u.Fragment != "" && !anchors(all[target])[u.Fragment] {
		return "no heading makes that anchor"
	}
	return ""
}

// TestLinks checks that the target of every link on the pages exists. README.md must have a link to
// every page in docs, and ARCHITECTURE.md must have a link to every page in docs/design.
func TestLinks(t *testing.T) {
	all := pages(t)
	reached := map[string]bool{}
	for page, text := range all {
		for _, m := range linked.FindAllStringSubmatch(text, -1) {
			if why := broken(all, page, m[1]); why != "" {
				t.Errorf("%s: %s: %s", page, m[1], why)
			}
			path, _, _ := strings.Cut(m[1], "#")
			switch page {
			case "../README.md":
				reached[filepath.Join("..", path)] = true
			case "../docs/ARCHITECTURE.md":
				reached[filepath.Join("../docs", path)] = reached[filepath.Join("../docs", path)] || strings.HasPrefix(path, "design/")
			}
		}
	}
	for page := range all {
		if strings.HasPrefix(page, "../docs/") && !reached[page] {
			t.Errorf("neither README.md nor docs/ARCHITECTURE.md links %s", page)
		}
	}
	if len(all) < 10 {
		t.Errorf("only %d pages were found", len(all))
	}
}

// TestBrokenLinks checks that the function broken recognizes broken links.
func TestBrokenLinks(t *testing.T) {
	all := map[string]string{"../README.md": "# A `b` c: d…\n# A b c d\n"}
	for to, good := range map[string]bool{
		"docs/cli.md": true, "docs": true, "#a-b-c-d": true, "#a-b-c-d-1": true, "https://example.com/x": true, "mailto:a@b.c": true,
		"docs/no.md": false, "#a-b": false, "#a-b-c-d-2": false, "../docs": false,
	} {
		if why := broken(all, "../README.md", to); (why == "") != good {
			t.Errorf("%s: %q", to, why)
		}
	}
}

var (
	comment = regexp.MustCompile(`(?m)^\s*//.*$`)
	literal = regexp.MustCompile("\"(?:[^\"\\\\\n]|\\\\.)*\"|`[^`]*`")
	code    = regexp.MustCompile("`([^`]+)`")
	verb    = regexp.MustCompile(`%[-+#0-9.]*[a-zA-Z]`)
	left    = regexp.MustCompile(`"?…"?|\\`)
	ofState = regexp.MustCompile(`^(stuck|degraded): `)
	message = regexp.MustCompile("(?m)^\\| (`.+?) \\|")
)

// literals returns the string literals in the project's code. It replaces formatting verbs such as
// %s with a gap.
func literals(t *testing.T) []string {
	t.Helper()
	var all []string
	walkTree(t, func(path string) {
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "../scripts/") {
			return
		}
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, lit := range literal.FindAllString(comment.ReplaceAllString(string(source), ""), -1) {
			if text, err := strconv.Unquote(lit); err == nil {
				all = append(all, verb.ReplaceAllString(text, "\x00"))
			}
		}
	})
	return all
}

// elsewhere lists messages of the kernel and of systemd, which do not occur in the project's code.
var elsewhere = []string{"device or resource busy", "Found left-over process … in control group", "unable to apply caps: operation not permitted", "Operation not permitted"}

// unknown returns the first part of a quoted message that occurs in no string literal of the code.
func unknown(all []string, quoted string) string {
	if slices.Contains(elsewhere, quoted) {
		return ""
	}
	quoted = ofState.ReplaceAllString(quoted, "") // status screens add this prefix to messages
	for part := range strings.SplitSeq(left.ReplaceAllString(quoted, "\x00"), "\x00") {
		if part = strings.Trim(part, " ,;:"); len(part) > 3 && !slices.ContainsFunc(all, func(s string) bool { return strings.Contains(s, part) }) {
			return part
		}
	}
	return ""
}

// TestTroubleshootingQuotes checks the messages that docs/troubleshooting.md quotes in headings and
// in the table of messages. Each of them must occur in the code.
func TestTroubleshootingQuotes(t *testing.T) {
	raw, err := os.ReadFile("../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	page := fence.ReplaceAllString(string(raw), "")
	_, index, ok := strings.Cut(page, "\n## By message\n")
	if index, _, _ = strings.Cut(index, "\n## "); !ok || strings.Count(index, "\n| `") < 20 {
		t.Fatal("there is no table of messages")
	}
	var quoted []string
	for _, m := range headings.FindAllStringSubmatch(page, -1) {
		for _, c := range code.FindAllStringSubmatch(m[1], -1) {
			quoted = append(quoted, c[1])
		}
	}
	for _, m := range message.FindAllStringSubmatch(index, -1) {
		for _, c := range code.FindAllStringSubmatch(m[1], -1) {
			quoted = append(quoted, c[1])
		}
	}
	all := literals(t)
	for _, q := range quoted {
		if part := unknown(all, q); part != "" {
			t.Errorf("nothing says %q, of `%s`", part, q)
		}
	}
	for q, want := range map[string]string{`no volume "…"`: "", `volume "…" is in use in mode … by …`: "", `volume "…" is at work for …`: "is at work for"} {
		if got := unknown(all, q); got != want {
			t.Errorf("%s: %q is unknown, want %q", q, got, want)
		}
	}
}
