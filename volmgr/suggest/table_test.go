package suggest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/remedy"
)

// TestWords checks that the table has words for each kind of remedy, and no other entries.
func TestWords(t *testing.T) {
	kinds := declared(t)
	for kind := range words {
		if !kinds[kind] {
			t.Errorf("the table words %q, which package remedy does not declare", kind)
		}
	}

	for kind := range kinds {
		if words[kind] == nil {
			t.Errorf("no words for %q", kind)
			continue
		}
		if got := Words(remedy.Of(kind, "1", "2", "3", "4")); got == "" {
			t.Errorf("%q has empty words", kind)
		}
	}

	if got := Words(remedy.Remedy{}); got != "" {
		t.Errorf("no remedy is %q", got)
	}
}

// declared returns the kinds that package remedy declares.
func declared(t *testing.T) map[remedy.Kind]bool {
	t.Helper()
	kinds := map[remedy.Kind]bool{}
	parsed(t, "../remedy", func(n ast.Node) {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return
		}
		if typ, ok := spec.Type.(*ast.Ident); ok && typ.Name == "Kind" {
			kinds[remedy.Kind(unquoted(t, spec.Values[0].(*ast.BasicLit)))] = true
		}
	})
	if len(kinds) < 20 {
		t.Fatalf("only %d kinds found", len(kinds))
	}
	return kinds
}

// domain lists the packages that return remedies and must contain no command text.
var domain = []string{
	"volmgr", "volmgr/backoff", "volmgr/call", "volmgr/csiclient", "volmgr/filetree", "volmgr/mount", "volmgr/plugin", "volmgr/proc", "volmgr/remedy", "volmgr/untrusted",
	"volmgr/volume",
}

// commandText matches a command as a person would type it.
var commandText = regexp.MustCompile(`\b(volctl|systemctl|journalctl) [a-z]|\b(umount|kill) (%|[A-Z/]|\d)`)

// TestDomainHasNoCommands checks that the packages of the domain contain no command text. Only the
// table in this package may contain it.
func TestDomainHasNoCommands(t *testing.T) {
	for _, pkg := range domain {
		parsed(t, filepath.Join("../..", pkg), func(n ast.Node) {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && commandText.MatchString(unquoted(t, lit)) {
				t.Errorf("%s has the command %s; return a remedy", pkg, lit.Value)
			}
		})
	}
}

// parsed calls see for each syntax node of the package in a directory. It skips test files.
func parsed(t *testing.T, dir string, see func(ast.Node)) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}

	files := 0
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}

		files++
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, e.Name()), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			see(n)
			return true
		})
	}
	if files == 0 {
		t.Fatalf("no Go files in %s", dir)
	}
}

func unquoted(t *testing.T, lit *ast.BasicLit) string {
	t.Helper()
	s, err := strconv.Unquote(lit.Value)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
