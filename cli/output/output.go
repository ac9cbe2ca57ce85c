// Package output writes all output of volctl: tables and status screens for people, JSON, YAML and
// templates for programs, and progress lines on a terminal. It escapes control characters in all
// texts, because the texts of plugins and volumes could contain escape sequences for a terminal.
package output

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/template"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/agent/api"
)

// These are the output formats.
const (
	FormatTable    = "table"
	FormatWide     = "wide"
	FormatJSON     = "json"
	formatYAML     = "yaml"
	FormatTemplate = "go-template"
)

// Options holds the output settings of a run.
type Options struct {
	Stdout, Stderr io.Writer

	// Format is table, wide, json, yaml or go-template=TEMPLATE.
	Format string
	Quiet  bool
	Colour bool
	Now    func() time.Time

	// Width is the width of the terminal on stdout, in columns. It is 0 if stdout is not a
	// terminal.
	Width int

	// Device returns the path of the block device with a number such as 7:0. It returns "" if the
	// device is unknown.
	Device func(number string) string

	// Pause waits between two updates of the progress display.
	Pause func(ctx context.Context, d time.Duration) error

	// Columns returns the width of the terminal on stderr. It returns 0 if volctl cannot erase
	// lines on stderr.
	Columns func() int
}

// Printer writes the output of a command. Only the Printer writes to stdout.
type Printer struct {
	Options
	tmpl *template.Template
}

// NewPrinter checks the output format and parses the template in it.
func NewPrinter(o Options) (*Printer, error) {
	name, text, hasText := strings.Cut(o.Format, "=")
	known := slices.Contains([]string{FormatTable, FormatWide, FormatJSON, formatYAML}, name) && !hasText
	if !known && (name != FormatTemplate || text == "") {
		return nil, badFormat("", "unknown output %q: it is one of table, wide, json, yaml, go-template=TEMPLATE", o.Format)
	}

	out := &Printer{Options: o}
	if name == FormatTemplate {
		t, err := template.New("-o").Funcs(template.FuncMap{"json": compactJSON}).Parse(text)
		if err != nil {
			return nil, badFormat("", "bad template: %v", strings.TrimPrefix(err.Error(), "template: "))
		}
		out.tmpl = t
	}

	out.Format = name
	return out, nil
}

// badFormat returns the error for an invalid value of --output.
func badFormat(hint, format string, args ...any) error {
	return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// Human reports whether the output is for a person.
func (o *Printer) Human() bool { return o.Format == FormatTable || o.Format == FormatWide }

// Wide reports whether the output shows all columns.
func (o *Printer) Wide() bool { return o.Format == FormatWide }

// Print writes a value in the chosen format. If the output is for a person, Print calls screen to
// write it. With -q, it writes only the ids.
func (o *Printer) Print(value any, ids []string, screen func(w *bytes.Buffer) error) error {
	var b bytes.Buffer
	var err error

	switch {
	case o.Human() && o.Quiet:
		for _, id := range ids {
			b.WriteString(id + "\n")
		}
	case o.Human():
		err = screen(&b)
	default:
		err = o.encode(&b, value, true)
	}

	if err != nil {
		return err
	}

	return o.Write(b.Bytes())
}

// Show writes a screen for a person. With -q, or if the output is for a program, it writes nothing.
func (o *Printer) Show(screen func(w *bytes.Buffer) error) error {
	if !o.Human() || o.Quiet {
		return nil
	}
	var b bytes.Buffer
	if err := screen(&b); err != nil {
		return err
	}
	return o.Write(b.Bytes())
}

// Stream writes one of several values that become available over time. If the output is for a
// person, Stream adds row to the table rows.
func (o *Printer) Stream(value any, rows *Rows, row ...string) error {
	if o.Human() {
		return rows.Add(row...)
	}

	var b bytes.Buffer
	if o.Format == formatYAML {
		b.WriteString("---\n")
	}

	if err := o.encode(&b, value, false); err != nil {
		return err
	}

	return o.Write(b.Bytes())
}

// Say writes the result as a sentence for a person. With -q, or if the output is for a program, it
// writes nothing.
func (o *Printer) Say(format string, args ...any) error {
	if !o.Human() || o.Quiet {
		return nil
	}
	return o.Write([]byte(Printable(fmt.Sprintf(format, args...)) + "\n"))
}

// Note writes a message to stderr that is not part of the command's output.
func (o *Printer) Note(format string, args ...any) {
	_, _ = fmt.Fprintln(o.Stderr, Printable(o.plain(fmt.Sprintf(format, args...))))
}

// plain replaces gRPC codes with words, and device numbers with paths. With -o wide, it keeps the
// gRPC codes.
func (o *Printer) plain(text string) string {
	text = Devices(text, o.Device)
	if o.Wide() {
		return text
	}
	return Words(text)
}

// Source returns the source of a mount. If source is a device number, Source returns the path of
// the device.
func (o *Printer) Source(source string) string {
	if !deviceNumber.MatchString(source) {
		return source
	}
	return cmp.Or(o.Device(source), source)
}

// cell converts a text to a single line for people.
func (o *Printer) cell(text string) string { return o.plain(OneLine(text)) }

// Write writes bytes to stdout unchanged.
func (o *Printer) Write(b []byte) error {
	if _, err := o.Stdout.Write(b); err != nil {
		return fmt.Errorf("cannot write the output: %w", err)
	}
	return nil
}

// encode writes a value for a program. All formats have the same field names as JSON.
func (o *Printer) encode(b *bytes.Buffer, value any, indent bool) error {
	text, err := Marshal(value)
	if err != nil {
		return fmt.Errorf("cannot encode the output: %w", err)
	}

	switch {
	case o.Format == FormatTemplate:
		return o.template(b, text)
	case o.Format == formatYAML:
		return toYAML(b, text)
	case indent:
		err = json.Indent(b, text, "", "  ")
	default:
		b.Write(text)
	}

	b.WriteByte('\n')
	return err
}

// template applies the user's template to the decoded JSON. It decodes integers as integers, so
// that templates can compare them.
func (o *Printer) template(b *bytes.Buffer, text []byte) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()

	var v any
	if err := dec.Decode(&v); err != nil {
		return fmt.Errorf("cannot encode the output: %w", err)
	}

	before := b.Len()
	if err := o.tmpl.Execute(b, numbers(v)); err != nil {
		return badFormat("-o json shows the names there are", "bad template: %v", strings.TrimPrefix(err.Error(), "template: "))
	}

	if b.Len() > before && b.Bytes()[b.Len()-1] != '\n' {
		b.WriteByte('\n')
	}

	return nil
}

func numbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			v[k] = numbers(e)
		}
	case []any:
		for i, e := range v {
			v[i] = numbers(e)
		}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
	}

	return v
}

func compactJSON(v any) (string, error) {
	b, err := Marshal(v)
	return string(b), err
}

// Marshal encodes a value as JSON. It escapes characters that would control a terminal.
func Marshal(v any) ([]byte, error) { return api.MarshalJSON(v) }

// toYAML converts JSON to YAML and keeps the order of the fields.
func toYAML(b *bytes.Buffer, text []byte) error {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return fmt.Errorf("cannot encode the output: %w", err)
	}

	blockStyle(&doc)
	var plain bytes.Buffer
	enc := yaml.NewEncoder(&plain)
	enc.SetIndent(2)

	if err := enc.Encode(&doc); err != nil {
		return fmt.Errorf("cannot encode the output: %w", err)
	}

	// Printable adds escapes, which YAML allows only in double quotes. blockStyle puts these values
	// in double quotes.
	b.WriteString(Printable(plain.String()))

	return enc.Close()
}

func blockStyle(n *yaml.Node) {
	n.Style = 0
	if n.Kind == yaml.ScalarNode && Printable(n.Value) != n.Value {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, c := range n.Content {
		blockStyle(c)
	}
}

// Warn writes the warnings of an answer to stderr.
func (o *Printer) Warn(warnings []string) {
	for _, w := range warnings {
		o.Note("warning: %s", w)
	}
}
