package event_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/volume"
)

const (
	root     = "../.."
	declared = "volmgr/volume/event.go"
)

// TestTypesAreConstants checks that the product code uses the constants of package volume for the
// types of events. It looks for string literals in all expressions that can be the type of an
// event.
func TestTypesAreConstants(t *testing.T) {
	types := eventTypes(t)
	packages := map[string][]*ast.File{}
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if filepath.ToSlash(path) != root+"/"+declared {
			packages[filepath.Dir(path)] = append(packages[filepath.Dir(path)], f)
		}
		return err
	})
	if err != nil || len(packages) < 20 {
		t.Fatalf("%d packages, %v", len(packages), err)
	}
	check := func(n ast.Node) bool {
		if text := literal(n); slices.Contains(types, volume.EventType(text)) || text == "claim-" || text == "plugin-" {
			t.Errorf("%s: the type %q is a literal; use the constant in %s", fset.Position(n.Pos()), text, declared)
		}
		return true
	}
	for _, files := range packages {
		takers := typeParameters(files)
		for _, f := range files {
			for _, place := range typePlaces(f, takers) {
				ast.Inspect(place, check)
			}
		}
	}
}

// literal returns the text of a string literal. It returns an empty text for all other nodes.
func literal(n ast.Node) string {
	lit, ok := n.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	text, _ := strconv.Unquote(lit.Value)
	return text
}

// typeParameters returns the indexes of the parameters of type EventType, by the name of the
// function. Methods of several types may have the same name.
func typeParameters(files []*ast.File) map[string][]int {
	takers := map[string][]int{}
	add := func(name string, fn *ast.FuncType) {
		i := 0
		for _, field := range fn.Params.List {
			if isEventType(field.Type) {
				takers[name] = append(takers[name], i)
			}
			i += max(1, len(field.Names))
		}
	}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				add(n.Name.Name, n.Type)
			case *ast.AssignStmt:
				fn, ok := n.Rhs[0].(*ast.FuncLit)
				if name, named := n.Lhs[0].(*ast.Ident); ok && named {
					add(name.Name, fn.Type)
				}
			}
			return true
		})
	}
	return takers
}

// typePlaces returns the expressions of a file that can be the type of an event. These are the
// values of fields named Type, operands of comparisons with such a field, arguments of the
// functions in the map takers, and operands of conversions to EventType.
func typePlaces(f *ast.File, takers map[string][]int) (places []ast.Node) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if name(n.Key) == "Type" {
				places = append(places, n.Value)
			}
		case *ast.AssignStmt:
			for i, to := range n.Lhs {
				if name(to) == "Type" && len(n.Lhs) == len(n.Rhs) {
					places = append(places, n.Rhs[i])
				}
			}
		case *ast.BinaryExpr:
			if name(n.X) == "Type" || name(n.Y) == "Type" {
				places = append(places, n)
			}
		case *ast.SwitchStmt:
			for _, c := range n.Body.List {
				for _, value := range c.(*ast.CaseClause).List {
					if name(n.Tag) == "Type" {
						places = append(places, value)
					}
				}
			}
		case *ast.CallExpr:
			for _, i := range takers[name(n.Fun)] {
				if i < len(n.Args) {
					places = append(places, n.Args[i])
				}
			}
			if isEventType(n.Fun) {
				places = append(places, n)
			}
		}
		return true
	})
	return places
}

func isEventType(e ast.Expr) bool { return name(e) == "EventType" }

// name returns the last name of an expression such as x or x.y.
func name(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// eventTypes returns the values of all constants of type EventType.
func eventTypes(t *testing.T) (types []volume.EventType) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, declared), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && isEventType(spec.Type) {
			types = append(types, volume.EventType(literal(spec.Values[0])))
		}
		return true
	})
	if len(types) < 50 {
		t.Fatalf("only %d types of events found", len(types))
	}
	return types
}

// TestTypesAreKnown checks that EventType.Check accepts every type, and no other text.
func TestTypesAreKnown(t *testing.T) {
	for _, typ := range eventTypes(t) {
		if err := typ.Check(); err != nil {
			t.Error(err)
		}
	}
	for _, typ := range []volume.EventType{"", "claim-", "stage", "Staged"} {
		if typ.Check() == nil {
			t.Errorf("%q is known", typ)
		}
	}
}

// TestTypesOnThePage checks that the table of event types in docs/troubleshooting.md names every
// type once, and no unknown types.
func TestTypesOnThePage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| type | meaning |\n")
	if !found {
		t.Fatal("the page has no table of event types")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	onPage := map[string]int{}
	for row := range strings.Lines(table) {
		for _, code := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(strings.Split(row, "|")[1], -1) {
			onPage[code[1]]++
		}
	}
	for _, typ := range eventTypes(t) {
		if n := onPage[string(typ)]; n != 1 {
			t.Errorf("the table names %s %d times", typ, n)
		}
		delete(onPage, string(typ))
	}
	for typ := range onPage {
		t.Errorf("the table names %s, and %s does not", typ, declared)
	}
}

// TestTypesOfStates checks that package volume has a constant for the event type of each state of a
// claim and of a plugin.
func TestTypesOfStates(t *testing.T) {
	types := eventTypes(t)
	for _, s := range []volume.ClaimState{volume.Pending, volume.Mounted, volume.Unpublishing, volume.NodeDetached, volume.ControllerDetached} {
		if !slices.Contains(types, volume.ClaimEvent(s)) {
			t.Errorf("claim state %s: no constant", s)
		}
	}
	for _, s := range []string{api.PluginStarting, api.PluginReady, api.PluginUnhealthy, api.PluginBackingOff, api.PluginFailed, api.PluginStopped} {
		if !slices.Contains(types, volume.PluginEvent(s)) {
			t.Errorf("plugin state %s: no constant", s)
		}
	}
}
