package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// kind says whether a text is a comment, a message or part of a page.
type kind int

const (
	comment kind = iota
	message
	page
)

// text is one paragraph of a file.
type text struct {
	kind  kind
	file  string // the path, relative to the root
	line  int
	words string
	lines int // the number of lines, if the text is a comment
}

// readTree reads the prose of all Go files and Markdown pages below a root directory.
func readTree(root string) ([]text, error) {
	var all []text
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != root && strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" || name == "dist" {
				return filepath.SkipDir
			}
			return nil
		}
		isGo, isPage := strings.HasSuffix(name, ".go"), strings.HasSuffix(name, ".md")
		if !isGo && !isPage {
			return nil
		}

		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if isPage {
			all = append(all, pageTexts(rel, string(src))...)
			return nil
		}
		texts, err := goTexts(rel, src)
		all = append(all, texts...)
		return err
	})
	return all, err
}

// goTexts reads the comments of a Go file, and the messages if the file is not a test. It ignores
// the messages in rules.go, because they quote the phrases that the rules forbid.
func goTexts(file string, src []byte) ([]text, error) {
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	line := func(p token.Pos) int { return fset.Position(p).Line }

	var all []text
	for _, group := range parsed.Comments {
		first, last := line(group.Pos()), line(group.End())
		paragraphs := split(group.Text())
		for i, words := range paragraphs {
			t := text{kind: comment, file: file, line: first, words: words}
			if i == 0 {
				t.lines = last - first + 1
			}
			all = append(all, t)
		}
	}
	if strings.HasSuffix(file, "_test.go") || file == filepath.Join("scripts", "prose", "rules.go") {
		return all, nil
	}

	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec, *ast.BinaryExpr, *ast.BasicLit, *ast.Field:
			if field, ok := n.(*ast.Field); ok {
				field.Tag = nil
				return true
			}
			if expr, ok := n.(ast.Expr); ok {
				if words, ok := literal(expr); ok {
					for _, p := range split(words) {
						if isProse(p) {
							all = append(all, text{kind: message, file: file, line: line(n.Pos()), words: p})
						}
					}
					return false
				}
			}
			_, isImport := n.(*ast.ImportSpec)
			return !isImport
		}
		return true
	})
	return all, nil
}

// literal returns the value of a string literal, or of several literals joined by "+". It replaces
// an operand that is not a literal with one word.
func literal(e ast.Expr) (words string, ok bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "", false
		}
		s, err := strconv.Unquote(e.Value)
		return s, err == nil
	case *ast.BinaryExpr:
		if e.Op != token.ADD {
			return "", false
		}
		left, okLeft := literal(e.X)
		right, okRight := literal(e.Y)
		if !okLeft && !okRight {
			return "", false
		}
		if !okLeft {
			left = "X"
		}
		if !okRight {
			right = "X"
		}
		return left + right, true
	}
	return "", false
}

var word = regexp.MustCompile(`^[("“]?[A-Za-z][a-z'’-]*[)"”,.:;?!]*$`)

// isProse reports whether a literal contains at least three ordinary words.
func isProse(s string) bool {
	n := 0
	for _, f := range strings.Fields(s) {
		if word.MatchString(f) {
			n++
		}
	}
	return n >= 3
}

// split returns the paragraphs of a text, each as a single line. It omits indented lines, because
// they are examples.
func split(s string) []string {
	var all, lines []string
	end := func() {
		if len(lines) > 0 {
			all = append(all, strings.Join(lines, " "))
		}
		lines = nil
	}
	for line := range strings.Lines(s) {
		trimmed := strings.TrimSpace(line)
		indented := strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "    ")
		switch {
		case trimmed == "" || indented:
			end()
		case strings.HasPrefix(trimmed, "- "):
			end()
			lines = append(lines, trimmed[2:])
		default:
			lines = append(lines, trimmed)
		}
	}
	end()
	return all
}

var (
	code = regexp.MustCompile("`[^`]*`")
	link = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)
	item = regexp.MustCompile(`^\s*([-*]|\d+\.) `)
)

// pageTexts reads the paragraphs, list items, headings and table cells of a Markdown page. It
// replaces each piece of code with one word.
func pageTexts(file, src string) []text {
	var all []text
	start, lines, fenced := 0, []string(nil), false
	add := func(line int, words string) {
		words = link.ReplaceAllString(code.ReplaceAllString(words, "X"), "$1")
		if words = strings.TrimSpace(words); words != "" {
			all = append(all, text{kind: page, file: file, line: line, words: words})
		}
	}
	end := func() {
		add(start, strings.Join(lines, " "))
		lines = nil
	}

	n := 0
	for line := range strings.Lines(src) {
		n++
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(trimmed, "```"):
			end()
			fenced = !fenced
		case fenced:
		case trimmed == "":
			end()
		case strings.HasPrefix(trimmed, "#"):
			end()
			add(n, strings.TrimLeft(trimmed, "# "))
		case strings.HasPrefix(trimmed, "|"):
			end()
			for cell := range strings.SplitSeq(trimmed, "|") {
				add(n, cell)
			}
		default:
			if item.MatchString(line) {
				end()
				trimmed = item.ReplaceAllString(line, "")
			}
			if len(lines) == 0 {
				start = n
			}
			lines = append(lines, strings.TrimSpace(trimmed))
		}
	}
	end()
	return all
}

var sentenceEnd = regexp.MustCompile(`([.?!])["”)]*\s+["“(]?[A-Z` + "`" + `]`)

// sentences splits a paragraph into sentences.
func sentences(words string) []string {
	var all []string
	for {
		m := sentenceEnd.FindStringSubmatchIndex(words)
		if m == nil {
			return append(all, words)
		}
		end := m[3]
		all = append(all, words[:end])
		words = strings.TrimSpace(words[end:])
	}
}
