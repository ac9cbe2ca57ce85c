package cli

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/pkg/twwidth"
	"github.com/olekukonko/tablewriter/renderer"
	"github.com/olekukonko/tablewriter/tw"
)

// table writes aligned columns, two spaces apart, without boxes. A header may
// be nil. The indent stands before every line.
func table(w *bytes.Buffer, indent string, header []string, rows [][]string) error {
	var b bytes.Buffer
	t := tablewriter.NewTable(&b,
		tablewriter.WithRenderer(renderer.NewBlueprint(tw.Rendition{
			Borders:  tw.BorderNone,
			Settings: tw.Settings{Separators: tw.SeparatorsNone, Lines: tw.LinesNone},
		})),
		// The library upper-cases headers, turns "_" into a space and wraps,
		// unless told otherwise.
		tablewriter.WithHeaderAutoFormat(tw.Off), tablewriter.WithRowAutoFormat(tw.Off),
		tablewriter.WithHeaderAutoWrap(tw.WrapNone), tablewriter.WithRowAutoWrap(tw.WrapNone),
		tablewriter.WithHeaderAlignment(tw.AlignLeft), tablewriter.WithRowAlignment(tw.AlignLeft),
		tablewriter.WithPadding(tw.Padding{Right: "  ", Overwrite: true}),
		tablewriter.WithEastAsian(tw.Off),
	)
	if header != nil {
		cells := make([]any, len(header))
		for i, h := range header {
			cells[i] = h
		}
		t.Header(cells...)
	}
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = oneLine(cell)
		}
		if err := t.Append(cells); err != nil {
			return fmt.Errorf("cannot lay out a table: %w", err)
		}
	}
	if header == nil && len(rows) == 0 {
		return nil
	}
	if err := t.Render(); err != nil {
		return fmt.Errorf("cannot lay out a table: %w", err)
	}
	for line := range strings.Lines(b.String()) {
		w.WriteString(strings.TrimRight(indent+line, " \n") + "\n")
	}
	return nil
}

// condition is what the mark at the start of a status screen tells.
type condition int

const (
	bad      condition = iota // a person should act
	changing                  // not as it is wanted, and on its way there
	good
)

// goodOr is good, or bad.
func goodOr(ok bool) condition {
	if ok {
		return good
	}
	return bad
}

// mark begins a status screen.
func (o *output) mark(c condition) string {
	sign, colour := "×", 31
	switch c {
	case changing:
		sign, colour = "◐", 33
	case good:
		sign, colour = "●", 32
	}
	if !o.colour {
		return sign
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", colour, sign)
}

// pair is a line of a status screen: what stands at its left, and what stands
// in the column to the right.
type pair struct{ left, right string }

// field is a pair with a name before it.
func field(name, left, right string) pair {
	return pair{fmt.Sprintf("  %-7s  %s", name, oneLine(left)), oneLine(right)}
}

func width(s string) int { return twwidth.WidthWithOptions(s, twwidth.Options{}) }

// widestLeft is the width from which a line does not move the right column.
const widestLeft = 72

// pairs writes lines with their right parts aligned. A mark in front is one
// column wide whatever its bytes.
func pairs(w *bytes.Buffer, lines []pair) {
	widest := 0
	for _, p := range lines {
		if w := width(p.left); p.right != "" && w <= widestLeft {
			widest = max(widest, w)
		}
	}
	for _, p := range lines {
		w.WriteString(p.left)
		if p.right != "" {
			w.WriteString(strings.Repeat(" ", max(0, widest-width(p.left))+4) + p.right)
		}
		w.WriteByte('\n')
	}
}
