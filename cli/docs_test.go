package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestReferenceIsCurrent checks that docs/cli.md is up to date. The page is generated from the
// commands.
func TestReferenceIsCurrent(t *testing.T) {
	_, root := testRoot()
	var b strings.Builder
	b.WriteString("<!-- Made by: go test ./cli -run TestReferenceIsCurrent -update -->\n\n# volctl\n\n" + exitCodeTable(root.Long) + "\n")
	section(&b, "Flags of all commands", root.PersistentFlags())
	b.WriteString(outputHelp)
	walk(root, func(c *cobra.Command) {
		if !c.Hidden && c.HasParent() && !c.HasSubCommands() {
			reference(&b, c)
		}
	})
	golden(t, filepath.Join("..", "docs", "cli.md"), b.String())
}

// exitCodeTable formats the exit codes in the help text as a Markdown table.
func exitCodeTable(help string) string {
	var b strings.Builder
	for line := range strings.Lines(help + "\n") {
		code, meaning, ok := strings.Cut(strings.TrimSpace(line), "  ")
		switch {
		case strings.HasPrefix(line, "Exit codes"):
			b.WriteString("## Exit codes\n\n| code | |\n|---|---|\n")
		case ok && strings.HasPrefix(line, "  "):
			fmt.Fprintf(&b, "| %s | %s |\n", code, meaning)
		default:
			b.WriteString(line)
		}
	}
	return b.String()
}

const outputHelp = "`-o json` and `-o yaml` have the names of the HTTP API. A template is one of Go's text/template,\n" +
	"run on the same names: `-o 'go-template={{range .}}{{.spec.id}} {{.state}}{{\"\\n\"}}{{end}}'`. create, register,\n" +
	"validate and detach answer with a list; export writes volume files instead. Errors go to stderr, with `-o json` as\n" +
	"`{\"error\":{\"code\",\"message\",\"hint\",\"details\"}}`.\n\n"

func reference(b *strings.Builder, c *cobra.Command) {
	fmt.Fprintf(b, "## %s\n\n%s.\n\n", c.CommandPath(), c.Short)
	fmt.Fprintf(b, "```\n%s\n```\n\n", strings.ReplaceAll(c.UseLine(), " [flags]", ""))
	if c.Long != "" {
		b.WriteString(fenced(c.Long) + "\n\n")
	}
	if c.Example != "" {
		fmt.Fprintf(b, "```\n%s\n```\n\n", strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n"))
	}
	section(b, "", c.NonInheritedFlags())
}

// fenced puts lines that begin with two spaces into code blocks. Such lines are tables in the help
// text.
func fenced(text string) string {
	var b strings.Builder
	inside := false
	for line := range strings.Lines(text + "\n") {
		if indented := strings.HasPrefix(line, "  "); indented != inside {
			b.WriteString(map[bool]string{true: "\n```\n", false: "```\n\n"}[indented])
			inside = indented
		}
		b.WriteString(strings.TrimPrefix(line, "  "))
	}
	if inside {
		b.WriteString("```\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func section(b *strings.Builder, title string, flags *pflag.FlagSet) {
	var rows []string
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "`--" + f.Name
		if kind, _ := pflag.UnquoteUsage(f); kind != "" {
			name += " " + kind
		}
		name += "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		_, text := pflag.UnquoteUsage(f)
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" && f.DefValue != "0" && f.DefValue != "0s" {
			text += " (default " + f.DefValue + ")"
		}
		rows = append(rows, fmt.Sprintf("| %s | %s |", name, strings.ReplaceAll(text, "|", "\\|")))
	})
	if len(rows) == 0 {
		return
	}
	if title != "" {
		b.WriteString("## " + title + "\n\n")
	}
	b.WriteString("| flag | |\n|---|---|\n" + strings.Join(rows, "\n") + "\n\n")
}

// TestFuzzTestsAreListed checks that CONTRIBUTING.md lists every fuzz test with its package, and
// nothing else.
func TestFuzzTestsAreListed(t *testing.T) {
	const root = ".."
	there := map[string][]string{}
	name := regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		pkg := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), "../")
		for _, found := range name.FindAllStringSubmatch(string(text), -1) {
			there[pkg] = append(there[pkg], found[1])
		}
		return err
	})
	text, rerr := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	if err := errors.Join(err, rerr); err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "## The fuzz tests\n")
	table, _, _ = strings.Cut(table, "\n## ")
	word := regexp.MustCompile("`(Fuzz\\w+)`")
	listed := map[string][]string{}
	for row := range strings.Lines(table) {
		pkg, rest, _ := strings.Cut(strings.TrimPrefix(row, "| `"), "` |")
		for _, found := range word.FindAllStringSubmatch(rest, -1) {
			listed[pkg] = append(listed[pkg], found[1])
		}
	}
	for _, all := range []map[string][]string{there, listed} {
		for _, names := range all {
			slices.Sort(names)
		}
	}
	if !maps.EqualFunc(there, listed, slices.Equal) {
		t.Errorf("there are\n%v\nand listed are\n%v", there, listed)
	}
}

// walk calls each for a command and for all commands below it.
func walk(cmd *cobra.Command, each func(*cobra.Command)) {
	each(cmd)
	for _, c := range cmd.Commands() {
		walk(c, each)
	}
}
