package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// pkg is a package without its tests.
type pkg struct {
	dir   string // the path, relative to the root
	fset  *token.FileSet
	files []*ast.File
	uses  map[*ast.Ident]types.Object

	code, blank, lines int // lines of code without comments, empty lines, and all lines
}

// testCode reports whether only tests use the package: it imports the package testing, or it is a
// test plugin.
func (p *pkg) testCode() bool {
	imports := func(f *ast.File) bool {
		return slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing"` })
	}
	return strings.HasPrefix(filepath.ToSlash(p.dir)+"/", "volmgr/csitest/") || slices.ContainsFunc(p.files, imports)
}

// readPackages reads all packages below a root directory.
func readPackages(root string) ([]*pkg, error) {
	fset := token.NewFileSet()
	found := map[string]*pkg{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && (path != root && strings.HasPrefix(name, ".") || name == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}

		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		p := found[dir]
		if p == nil {
			p = &pkg{dir: dir, fset: fset}
			found[dir] = p
		}
		return p.read(path)
	})
	if err != nil {
		return nil, err
	}

	var all []*pkg
	for _, p := range found {
		p.resolve()
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *pkg) int { return strings.Compare(a.dir, b.dir) })
	return all, nil
}

func (p *pkg) read(path string) error {
	src, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	file, err := parser.ParseFile(p.fset, path, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(file) {
		return err
	}
	p.files = append(p.files, file)

	code := linesOfCode(src)
	p.code += code
	for line := range strings.Lines(string(src)) {
		p.lines++
		if strings.TrimSpace(line) == "" {
			p.blank++
		}
	}
	return nil
}

// linesOfCode returns the number of lines with code.
func linesOfCode(src []byte) int {
	fset := token.NewFileSet()
	file := fset.AddFile("", fset.Base(), len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, 0)

	lines := map[int]bool{}
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return len(lines)
		}
		if tok == token.SEMICOLON && lit == "\n" {
			continue
		}
		first := file.Line(pos)
		for i := range 1 + strings.Count(lit, "\n") {
			lines[first+i] = true
		}
	}
}

// noImports is an importer that imports nothing. The command needs no imports, because it considers
// only declarations of the package itself.
type noImports struct{}

func (noImports) Import(path string) (*types.Package, error) {
	return nil, fmt.Errorf("%s is not imported", path)
}

// resolve finds the declaration of each identifier. It ignores type errors that result from the
// missing imports.
func (p *pkg) resolve() {
	p.uses = map[*ast.Ident]types.Object{}
	conf := types.Config{
		Importer: noImports{},
		Error:    func(error) {},
	}
	_, _ = conf.Check(p.dir, p.fset, p.files, &types.Info{Uses: p.uses})
}

// mostMethods returns the name of the type with the most methods, and the number of its methods.
func (p *pkg) mostMethods() (name string, methods int) {
	number := map[string]int{}
	for _, f := range p.files {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
				number[receiver(fn.Recv.List[0].Type)]++
			}
		}
	}
	for n, m := range number {
		if m > methods || m == methods && n < name {
			name, methods = n, m
		}
	}
	return name, methods
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// references returns the graph of references between the files of the package.
func (p *pkg) references() graph {
	number := map[*token.File]int{}
	for i, f := range p.files {
		number[p.fset.File(f.Pos())] = i
	}

	g := make(graph, len(p.files))
	for i := range g {
		g[i] = make([]bool, len(p.files))
	}
	for ident, object := range p.uses {
		if !object.Pos().IsValid() {
			continue
		}
		from, ok := number[p.fset.File(ident.Pos())]
		to, declared := number[p.fset.File(object.Pos())]
		if ok && declared && from != to {
			g[from][to] = true
		}
	}
	return g
}
