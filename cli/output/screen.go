package output

import (
	"bytes"
	"fmt"
)

// Condition is the meaning of the mark at the start of a status screen.
type Condition int

// The conditions.
const (
	Bad      Condition = iota // the operator should act
	Changing                  // not in its wanted state yet, but on its way
	Good
)

// GoodOr returns Good if ok, and Bad otherwise.
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

// Headline writes the first line of a status screen: a mark and facts, with space between them.
// Empty facts are omitted.
func (o *Printer) Headline(w *bytes.Buffer, indent, mark string, facts ...string) {
	for i, fact := range facts {
		facts[i] = o.cell(fact)
	}
	o.line(w, indent, mark+" "+Joined(factGap, facts...))
}

// factGap separates the facts in one line of a screen.
const factGap = "   "

// Line writes one line of a screen.
func (o *Printer) Line(w *bytes.Buffer, indent, text string) { o.line(w, indent, o.cell(text)) }

// line wraps a text that is wider than the terminal.
func (o *Printer) line(w *bytes.Buffer, indent, text string) {
	for i, part := range wrap(text, o.Width-width(indent)-len(gap)) {
		if i == 1 {
			indent += gap
		}
		w.WriteString(indent + part + "\n")
	}
}

// Field is one fact of a status screen, with its name.
type Field struct{ name, value string }

// Named returns a field. A field without a name continues the one before. Empty facts are omitted.
func Named(name string, facts ...string) Field { return Field{name, Joined(factGap, facts...)} }

// nameWidth is the width of the names on all screens, so that their values are aligned.
const nameWidth = len("Healthy")

// Fields writes the fields of a status screen, one on each line.
func (o *Printer) Fields(w *bytes.Buffer, indent string, fields []Field) error {
	rows := make([][]string, len(fields))
	for i, f := range fields {
		rows[i] = []string{f.name, f.value}
	}
	return o.layOut(w, indent, nil, rows, []int{nameWidth})
}
