package cli

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// suggested matches the volctl commands in messages and in the documentation.
var suggested = regexp.MustCompile(`\bvolctl((?: +(?:\[[^\]]*\]|'[^']*'|[^\s'"` + "`" + `();,|&<>#]+))+)`)

// TestSuggestedCommands checks the volctl commands in messages and in the documentation. Each
// command and each of its flags must exist.
func TestSuggestedCommands(t *testing.T) {
	_, root := testRoot()
	found := 0
	check := func(where, text string) {
		for _, match := range suggested.FindAllStringSubmatch(text, -1) {
			sentence, _, _ := strings.Cut(match[1], " or ")
			words := strings.Fields(sentence)
			for i, w := range words {
				words[i] = strings.TrimRight(w, ".:")
			}
			if cmd, _, err := root.Find(words[:1]); err != nil || cmd == root {
				continue // the text is a sentence about volctl and not a command
			}
			found++
			if err := usable(root, words); err != nil {
				t.Errorf("%s: %q: %v", where, match[0], err)
			}
		}
	}
	for _, dir := range []string{"agent", "cli", "statedb", "volmgr", "cmd"} {
		eachLiteral(t, filepath.Join("..", dir), check)
	}
	docs, err := filepath.Glob("../docs/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatalf("no documentation: %v", err)
	}
	for _, path := range append(docs, "../README.md") {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range quotes(string(raw)) {
			check(path, text)
		}
	}
	if found < 300 {
		t.Errorf("only %d commands were found", found)
	}
}

// TestUsable checks that the function usable returns an error for an invalid command.
func TestUsable(t *testing.T) {
	_, root := testRoot()
	for line, want := range map[string]string{
		"volume status %s":                       "",
		"volume detach ID ALLOC --force":         "",
		"volume deregister %s -force -y":         "",
		"volume detach %s --without-plugin=lazy": "",
		"volume --help":                          "",
		"state backup -":                         "",
		"volume status -- --nosuch":              "",
		"volume statuss %s":                      "no command",
		"volume status %s --nosuch":              "no flag",
		"volume status %s -Z":                    "no flag",
	} {
		err := usable(root, strings.Fields(line))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}

// usable returns an error if a command or one of its flags does not exist. It ignores arguments,
// because they may be placeholders or words of the surrounding sentence.
func usable(root *cobra.Command, words []string) error {
	cmd, rest, err := root.Find(words)
	if err != nil {
		return err
	}
	for i, word := range rest {
		name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
		switch {
		case word == "--":
			return nil
		case i == 0 && cmd.HasSubCommands() && !strings.HasPrefix(word, "-"):
			return fmt.Errorf("%s has no command %q", cmd.CommandPath(), word)
		case !strings.HasPrefix(word, "-") || name == "" || name == "help" || name == "h":
		case len(name) == 1 && cmd.Flags().ShorthandLookup(name) == nil && cmd.InheritedFlags().ShorthandLookup(name) == nil,
			len(name) > 1 && cmd.Flag(name) == nil:
			return fmt.Errorf("%s has no flag %q", cmd.CommandPath(), word)
		}
	}
	return nil
}

// eachLiteral calls do for each string literal in the Go files below dir, except tests.
func eachLiteral(t *testing.T, dir string, do func(where, text string)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil {
					do(files.Position(lit.Pos()).String(), text)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// quotes returns the code in a Markdown text: the lines of code blocks, and the words in backticks.
func quotes(text string) (code []string) {
	block := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			block = !block
			continue
		}
		if block {
			code = append(code, line)
			continue
		}
		for i, piece := range strings.Split(line, "`") {
			if i%2 == 1 {
				code = append(code, piece)
			}
		}
	}
	return code
}
