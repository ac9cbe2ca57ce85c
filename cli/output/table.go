package output

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/pkg/twwidth"
	"github.com/olekukonko/tablewriter/renderer"
	"github.com/olekukonko/tablewriter/tw"
)

// Table writes aligned columns, two spaces apart, without boxes. The header may be nil. The indent
// precedes every line.
func Table(w *bytes.Buffer, indent string, header []string, rows [][]string) error {
	var b bytes.Buffer
	t := tablewriter.NewTable(&b,
		tablewriter.WithRenderer(renderer.NewBlueprint(tw.Rendition{
			Borders:  tw.BorderNone,
			Settings: tw.Settings{Separators: tw.SeparatorsNone, Lines: tw.LinesNone},
		})),
		// By default, the library turns headers into upper case, replaces "_" by a space, and
		// wraps.
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
			cells[i] = OneLine(cell)
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

// Condition is the meaning of the mark at the start of a status screen.
type Condition int

// The conditions.
const (
	Bad      Condition = iota // the operator should act
	Changing                  // not in its wanted state yet, but on its way
	Good
)

// GoodOr returns good if ok, and bad otherwise.
func GoodOr(ok bool) Condition {
	if ok {
		return Good
	}
	return Bad
}

// Mark returns the sign that begins a status screen.
func (o *Printer) Mark(c Condition) string {
	sign, colour := "×", 31
	switch c {
	case Changing:
		sign, colour = "◐", 33
	case Good:
		sign, colour = "●", 32
	}

	if !o.Colour {
		return sign
	}

	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", colour, sign)
}

// Pair is a line of a status screen, with its left part and its right column.
type Pair struct{ Left, right string }

// Headline returns the first line of a screen, which has no name.
func Headline(left, right string) Pair { return Pair{left, right} }

// Field returns a pair whose left part begins with a name.
func Field(name, left, right string) Pair {
	return Pair{fmt.Sprintf("  %-7s  %s", name, OneLine(left)), OneLine(right)}
}

func width(s string) int { return twwidth.WidthWithOptions(s, twwidth.Options{}) }

// widestLeft is the maximum width that a left part can reserve. A wider left part does not move the
// right column.
const widestLeft = 72

// Pairs writes lines with aligned right parts. A mark counts as one column, however many bytes it
// has.
func Pairs(w *bytes.Buffer, lines []Pair) {
	widest := 0
	for _, p := range lines {
		if w := width(p.Left); p.right != "" && w <= widestLeft {
			widest = max(widest, w)
		}
	}

	for _, p := range lines {
		w.WriteString(p.Left)
		if p.right != "" {
			w.WriteString(strings.Repeat(" ", max(0, widest-width(p.Left))+4) + p.right)
		}
		w.WriteByte('\n')
	}
}
