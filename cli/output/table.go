package output

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/pkg/twwidth"
	"github.com/olekukonko/tablewriter/renderer"
	"github.com/olekukonko/tablewriter/tw"
)

// gap is the space between two columns.
const gap = "  "

// narrowest is the minimum width of a column, because narrower wrapped cells are hard to read.
const narrowest = 8

// Table writes a table with aligned columns, and with headers in upper case. The header may be nil.
// Each line starts with indent. On a terminal, Table wraps cells in the widest columns until the
// table fits. If the columns would become too narrow to read, it writes each row as a list instead.
func (o *Printer) Table(w *bytes.Buffer, indent string, header []string, rows [][]string) error {
	return o.layOut(w, indent, header, rows, nil)
}

// layOut writes a table. The argument least contains the minimum widths of the columns.
func (o *Printer) layOut(w *bytes.Buffer, indent string, header []string, rows [][]string, least []int) error {
	if header == nil && len(rows) == 0 {
		return nil
	}

	var head []string
	for _, h := range header {
		head = append(head, strings.ToUpper(h))
	}

	cells := make([][]string, len(rows))
	for i, row := range rows {
		for _, cell := range row {
			cells[i] = append(cells[i], o.cell(cell))
		}
	}

	widths := widest(append(slices.Clone(cells), head), least)
	if o.Width > 0 {
		readable := shrink(widths, widest([][]string{head}, nil), o.Width-width(indent)-len(gap)*(len(widths)-1))
		if !readable && head != nil {
			return o.listOut(w, indent, head, cells)
		}
	}

	text, err := render(head, wrapped(cells, widths), widths)
	if err != nil {
		return fmt.Errorf("cannot lay out a table: %w", err)
	}

	for line := range strings.Lines(text) {
		w.WriteString(strings.TrimRight(indent+line, " \n") + "\n")
	}

	return nil
}

// render uses the table library to align the cells. It sets no width for the last column, so that
// lines do not end with spaces.
func render(header []string, rows [][]string, widths []int) (string, error) {
	fixed := tw.Mapper[int, int]{}
	for i, n := range widths[:max(0, len(widths)-1)] {
		fixed[i] = n + len(gap)
	}

	var b strings.Builder
	t := tablewriter.NewTable(&b,
		tablewriter.WithRenderer(renderer.NewBlueprint(tw.Rendition{
			Borders:  tw.BorderNone,
			Settings: tw.Settings{Separators: tw.SeparatorsNone, Lines: tw.LinesNone},
		})),
		tablewriter.WithColumnWidths(fixed),
		// By default, the library would convert headers to upper case, replace "_" with a space,
		// and wrap cells.
		tablewriter.WithHeaderAutoFormat(tw.Off), tablewriter.WithRowAutoFormat(tw.Off),
		tablewriter.WithHeaderAutoWrap(tw.WrapNone), tablewriter.WithRowAutoWrap(tw.WrapNone),
		tablewriter.WithHeaderAlignment(tw.AlignLeft), tablewriter.WithRowAlignment(tw.AlignLeft),
		tablewriter.WithPadding(tw.Padding{Right: gap, Overwrite: true}),
		tablewriter.WithEastAsian(tw.Off),
	)

	if header != nil {
		t.Header(header)
	}

	for _, row := range rows {
		if err := t.Append(row); err != nil {
			return "", err
		}
	}

	err := t.Render()
	return b.String(), err
}

// widest returns the width that each column needs, but at least the width in least.
func widest(rows [][]string, least []int) []int {
	widths := slices.Clone(least)
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], width(cell))
		}
	}
	return widths
}

// shrink narrows the widest columns until all columns fit into the room. It reports whether the
// columns are still wide enough for the headers and for readable cells.
func shrink(widths, headers []int, room int) bool {
	total := 0
	for _, n := range widths {
		total += n
	}

	readable := true
	for ; total > max(room, len(widths)); total-- {
		most := slices.Index(widths, slices.Max(widths))
		widths[most]--
		fits := most >= len(headers) || widths[most] >= headers[most]
		readable = readable && fits && widths[most] >= narrowest
	}

	return readable
}

// listOut writes each row of a table as a list, with one cell on each line.
func (o *Printer) listOut(w *bytes.Buffer, indent string, header []string, rows [][]string) error {
	for i, row := range rows {
		if i > 0 {
			w.WriteString("\n")
		}

		pairs := make([][]string, len(row))
		for j, cell := range row {
			pairs[j] = []string{header[j], cell}
		}
		if err := o.layOut(w, indent, nil, pairs, nil); err != nil {
			return err
		}
	}

	return nil
}

// wrapped wraps each cell to the width of its column.
func wrapped(rows [][]string, widths []int) [][]string {
	all := make([][]string, len(rows))
	for i, row := range rows {
		for j, cell := range row {
			all[i] = append(all[i], strings.Join(wrap(cell, widths[j]), "\n"))
		}
	}
	return all
}

// wrap breaks a text into lines that are at most the given number of columns wide. If possible, it
// breaks the text at spaces.
func wrap(text string, columns int) []string {
	if columns <= 0 || width(text) <= columns {
		return []string{text}
	}

	var lines []string
	line := ""
	for _, word := range strings.Split(text, " ") {
		if line != "" && width(line)+1+width(word) <= columns {
			line += " " + word
			continue
		}
		if line != "" {
			lines = append(lines, line)
		}
		for line = word; width(line) > columns; {
			head := firstColumns(line, columns)
			lines, line = append(lines, head), line[len(head):]
		}
	}

	return append(lines, line)
}

// firstColumns returns the start of a text that fits into the given number of columns, but at least
// one character.
func firstColumns(text string, columns int) string {
	end := 0
	for end < len(text) {
		_, size := utf8.DecodeRuneInString(text[end:])
		if end > 0 && width(text[:end+size]) > columns {
			break
		}
		end += size
	}
	return text[:end]
}

// width returns the number of columns that a text takes up on a terminal. A mark takes up one
// column, and its colour codes take up none.
func width(s string) int { return twwidth.WidthWithOptions(s, twwidth.Options{}) }

// Rows writes a table whose rows become available over time. If a cell is wider than its column,
// the column becomes wider for this row and all later rows.
type Rows struct {
	// Batch makes Add collect the rows until Flush, because it is much faster to lay out many rows
	// at once.
	Batch bool

	out    *Printer
	header []string
	widths []int
	rows   [][]string
}

// NewRows starts a table. The header may be nil, and least contains the minimum widths of the
// columns.
func (o *Printer) NewRows(header []string, least ...int) *Rows {
	return &Rows{out: o, header: header, widths: least}
}

// Add writes the next row. If Batch is set, Add only stores the row.
func (r *Rows) Add(row ...string) error {
	r.rows = append(r.rows, row)
	if r.Batch {
		return nil
	}
	return r.Flush()
}

// Flush writes the stored rows.
func (r *Rows) Flush() error {
	var known [][]string
	for _, row := range r.rows {
		var cells []string
		for _, cell := range row[:len(row)-1] {
			cells = append(cells, r.out.cell(cell))
		}
		known = append(known, cells)
	}
	r.widths = widest(known, r.widths)

	var b bytes.Buffer
	err := r.out.layOut(&b, "", r.header, r.rows, r.widths)
	r.header, r.rows = nil, nil
	return errors.Join(err, r.out.Write(b.Bytes()))
}
