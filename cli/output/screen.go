package output

import (
	"bytes"
	"fmt"
)

// Condition is the meaning of the mark that begins a status screen.
type Condition int

// These are the conditions, with the worst first.
const (
	Bad      Condition = iota // the operator should act
	Changing                  // not in the wanted state yet, but without a problem
	Good
)

// GoodOr returns Good if ok is true, and Bad otherwise.
func GoodOr(ok bool) Condition {
	if ok {
		return Good
	}
	return Bad
}

// Mark returns the coloured sign that stands for a condition.
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

// Headline writes the first line of a status screen: a mark, and facts with gaps between them. It
// omits empty facts.
func (o *Printer) Headline(w *bytes.Buffer, indent, mark string, facts ...string) {
	for i, fact := range facts {
		facts[i] = o.cell(fact)
	}
	o.line(w, indent, mark+" "+Joined(factGap, facts...))
}

// factGap separates the facts on one line of a screen.
const factGap = "   "

// Line writes one line of a screen, and wraps it if it is wider than the terminal.
func (o *Printer) Line(w *bytes.Buffer, indent, text string) { o.line(w, indent, o.cell(text)) }

// line writes a text, and wraps it if it is wider than the terminal.
func (o *Printer) line(w *bytes.Buffer, indent, text string) {
	for i, part := range wrap(text, o.Width-width(indent)-len(gap)) {
		if i == 1 {
			indent += gap
		}
		w.WriteString(indent + part + "\n")
	}
}

// Field is a name and a value on a status screen.
type Field struct{ name, value string }

// Named returns a Field. If the name is empty, the field continues the previous one. Empty facts
// are omitted.
func Named(name string, facts ...string) Field { return Field{name, Joined(factGap, facts...)} }

// nameWidth is the width of the names on all screens, so that the values are aligned.
const nameWidth = len("Healthy")

// Fields writes the fields of a status screen, one on each line.
func (o *Printer) Fields(w *bytes.Buffer, indent string, fields []Field) error {
	rows := make([][]string, len(fields))
	for i, f := range fields {
		rows[i] = []string{f.name, f.value}
	}
	return o.layOut(w, indent, nil, rows, []int{nameWidth})
}
