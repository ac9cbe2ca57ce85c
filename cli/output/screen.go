package output

import (
	"bytes"
	"fmt"
)

// Condition is the meaning of the mark at the start of a status screen.
type Condition int

// These are the conditions, from the worst to the best.
const (
	Bad      Condition = iota // there is a problem that the operator should solve
	Changing                  // not in the requested state yet, but without a problem
	Good
)

// GoodOr returns Good if ok is true, and Bad otherwise.
func GoodOr(ok bool) Condition {
	if ok {
		return Good
	}
	return Bad
}

// Mark returns the coloured symbol for a condition.
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

// Headline writes the first line of a status screen, which consists of a mark and facts. It omits
// empty facts.
func (o *Printer) Headline(w *bytes.Buffer, indent, mark string, facts ...string) {
	for i, fact := range facts {
		facts[i] = o.cell(fact)
	}
	o.line(w, indent, mark+" "+Joined(factGap, facts...))
}

// factGap separates two facts on the same line.
const factGap = "   "

// Line converts a text for people and writes it. If the text is wider than the terminal, Line wraps
// it.
func (o *Printer) Line(w *bytes.Buffer, indent, text string) { o.line(w, indent, o.cell(text)) }

// line writes a text. If the text is wider than the terminal, line wraps it.
func (o *Printer) line(w *bytes.Buffer, indent, text string) {
	for i, part := range wrap(text, o.Width-width(indent)-len(gap)) {
		if i == 1 {
			indent += gap
		}
		w.WriteString(indent + part + "\n")
	}
}

// Field is a line on a status screen that consists of a name and a value.
type Field struct{ name, value string }

// Named returns a Field whose value consists of facts. It omits empty facts. A Field with an empty
// name continues the previous Field.
func Named(name string, facts ...string) Field { return Field{name, Joined(factGap, facts...)} }

// nameWidth is the width of the names on all status screens, so that the values are aligned.
const nameWidth = len("Healthy")

// Fields writes the fields of a status screen, each on a line of its own.
func (o *Printer) Fields(w *bytes.Buffer, indent string, fields []Field) error {
	rows := make([][]string, len(fields))
	for i, f := range fields {
		rows[i] = []string{f.name, f.value}
	}
	return o.layOut(w, indent, nil, rows, []int{nameWidth})
}
