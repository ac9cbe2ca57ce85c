// Command shape prints figures about each package: the number of files, lines and methods, and the
// number of references between files that point back.
//
//	shape ROOT
//
// A file refers to another file of its package if it uses a declaration of that file. A package is
// easy to read if its files can be ordered so that each file refers only to later files. For each
// package, the command searches for the order with the fewest references that point back to an
// earlier file. It counts at most one reference from one file to another.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "shape:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("usage: shape ROOT")
	}
	packages, err := readPackages(args[0])
	if err != nil {
		return err
	}

	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(table, "package\tfiles\tcode\tblank %\trefs\tback\tback %\tmost methods\t")
	code, blank, lines := 0, 0, 0
	for _, p := range packages {
		name, methods := p.mostMethods()
		refs := p.references()
		back := fewestBack(refs)
		n := refs.number()
		_, _ = fmt.Fprintf(table, "%s\t%d\t%d\t%.1f\t%d\t%d\t%.0f\t%s %d\t\n", p.dir, len(p.files), p.code, percent(p.blank, p.lines), n, back, percent(back, n), name, methods)
		if !p.testCode() {
			code, blank, lines = code+p.code, blank+p.blank, lines+p.lines
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%d lines of code without tests, test packages and generated code; %.1f %% blank lines\n", code, percent(blank, lines))
	return err
}

func percent(part, whole int) float64 { return float64(part) * 100 / float64(max(whole, 1)) }
