package suggest_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	programs = `(?:volctl|volagent|` + others + `)`
	others   = `(?:systemctl|journalctl|umount|findmnt|kill|losetup|chattr|rm|mkdir|touch|chmod|chown|ls|df|groupadd|rmdir|docker|podman)`
	// lead matches the text that may precede a command: the start of the text, or punctuation. A
	// sentence such as "docker runs it" therefore does not count as a command.
	lead = `(?:^|[:;(|&] ?|\$\(|` + "`" + `)`
)

var (
	// withVerb matches a command with a formatting verb, which inserts a value.
	withVerb = regexp.MustCompile(lead + programs + `( [a-zA-Z0-9=+-]+)* [a-zA-Z=+-]*%(\[\d\])?[sd]`)
	// open matches a text that ends in a command without its last argument. Code would append a
	// value to such a text.
	open = regexp.MustCompile(lead + `(?:(?:volctl|volagent) [a-z]|` + others + ` )( ?[a-z-]+)*( --?[a-z-]+)* ?=?$`)
	// oneCommand matches a format that contains a single command, as suggest.Command requires.
	oneCommand = regexp.MustCompile(`^(%s|\$\{EDITOR:-vi\}|` + programs + `)( [^ ;|&$()<>]+)+$`)
	// spacedOption matches a volctl command with an option whose value is the next word.
	spacedOption = regexp.MustCompile(`^volctl.* (--[a-z-]+) [%a-z]`)
	valued       = []string{"--plugin", "--volume", "--for", "--type", "--instance"}
)

// builders lists the functions whose first argument is the format of one command.
var builders = map[string]bool{"Command": true, "do": true, "Narrow": true}

// TestNobodyElseBuildsCommands checks that no other package inserts a value into a command, with a
// format, the operator "+", or a joined list of words.
func TestNobodyElseBuildsCommands(t *testing.T) {
	found := checkTree(t, "../..")
	for _, f := range found {
		t.Error(f)
	}
}

// TestGuardFindsThem checks that checkTree detects every way of inserting a value into a command.
func TestGuardFindsThem(t *testing.T) {
	for code, bad := range map[string]bool{
		`x := "umount " + path`:                                        true,
		`x := "volctl volume status " + id`:                            true,
		`x := fmt.Sprintf("kill %d", pid)`:                             true,
		`x := fmt.Sprintf("to end it: systemctl stop %s", unit)`:       true,
		`e.WithHint("drop it: volctl volume deregister %s", id)`:       true,
		`e.WithHint("volctl volume deregister %s; or wait", id)`:       true,
		`x := strings.Join([]string{"volctl volume detach", id}, " ")`: true,
		`x := volume.Command("findmnt %s; umount %s", a, b)`:           true,
		`x := volume.Command("volctl wait --volumes %s", a)`:           true,
		`x := volume.Command("volctl wait --volume %s", a)`:            false,
		`e.WithHint("volctl volume deregister %s", id)`:                false,
		`e.WithHint("drop it: %s", volume.Command("volctl x %s", a))`:  false,
		`x := "volctl volume list"`:                                    false,
		`exec.Command("umount", path)`:                                 false,
		`fmt.Errorf("cannot kill process %d: %w", pid, err)`:           false,
	} {
		if got := checkFile(t, "x.go", "package x\nfunc f() {\n"+code+"\n}"); (len(got) > 0) != bad {
			t.Errorf("%s: %q", code, got)
		}
	}
}

func checkTree(t *testing.T, root string) (found []string) {
	files := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains([]string{"scripts", "cmd/volagent/test", "volmgr/csitest", "volmgr/suggest"}, rel) || strings.HasPrefix(d.Name(), ".") && rel != "."):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		files++
		found = append(found, checkFile(t, path, nil)...)
		return nil
	})
	if err != nil || files < 300 {
		t.Fatalf("%d files, %v", files, err)
	}
	return found
}

func checkFile(t *testing.T, path string, src any) (found []string) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, src, 0)
	if err != nil {
		t.Fatal(err)
	}
	report := func(n ast.Node, text string) {
		found = append(found, set.Position(n.Pos()).String()+": "+strconv.Quote(text)+" puts a value into a command; use suggest.Command")
	}
	formats := map[ast.Expr]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			name := called(n)
			format, ok := literal(first(n.Args))
			if !ok {
				break
			}
			_, process := n.Fun.(*ast.SelectorExpr)
			if process && strings.HasPrefix(types(n.Fun), "exec.") {
				break
			}
			if builders[name] || name == "WithHint" && strings.HasPrefix(format, "volctl ") {
				formats[n.Args[0]] = true
				if strings.Contains(format, "%") && (!oneCommand.MatchString(format) || unknownOption(format)) {
					report(n, format)
				}
			}
		case *ast.BinaryExpr:
			if text, ok := literal(n.X); ok && n.Op == token.ADD && open.MatchString(text) {
				if _, fixed := literal(n.Y); !fixed && !isConstant(n.Y) {
					report(n, text)
				}
			}
		case *ast.CompositeLit:
			for i, e := range n.Elts {
				text, ok := literal(e)
				if ok && i+1 < len(n.Elts) && strings.Contains(text, " ") && open.MatchString(text) {
					if _, fixed := literal(n.Elts[i+1]); !fixed {
						report(e, text)
					}
				}
			}
		case *ast.BasicLit:
			if text, ok := literal(n); ok && !formats[n] && withVerb.MatchString(text) {
				report(n, text)
			}
		}
		return true
	})
	return found
}

// unknownOption reports whether a format has an option whose value suggest.Command would wrongly
// treat as an operand.
func unknownOption(format string) bool {
	found := spacedOption.FindStringSubmatch(format)
	return found != nil && !slices.Contains(valued, found[1])
}

func called(n *ast.CallExpr) string {
	switch f := n.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

func types(e ast.Expr) string {
	if s, ok := e.(*ast.SelectorExpr); ok {
		if x, ok := s.X.(*ast.Ident); ok {
			return x.Name + "." + s.Sel.Name
		}
	}
	return ""
}

func first(args []ast.Expr) ast.Expr {
	if len(args) == 0 {
		return nil
	}
	return args[0]
}

// isConstant reports whether an operand has the name of a constant of this project, such as
// agentUnit.
func isConstant(e ast.Expr) bool {
	id, ok := e.(*ast.Ident)
	return ok && slices.Contains([]string{"agentUnit", "verb"}, id.Name)
}

func literal(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}
