package cli

import (
	"bytes"
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

// The output formats.
const (
	formatTable    = "table"
	formatWide     = "wide"
	formatJSON     = "json"
	formatYAML     = "yaml"
	formatTemplate = "go-template"
)

// options are what a run decides about its output.
type options struct {
	stdout, stderr io.Writer

	// format is table, wide, json, yaml or go-template=TEMPLATE.
	format string
	quiet  bool
	colour bool
	now    func() time.Time

	// pause waits between two progress updates.
	pause func(ctx context.Context, d time.Duration) error

	// columns returns the width of the terminal on stderr, or 0 if lines cannot be erased there.
	columns func() int
}

// output is the only way to stdout.
type output struct {
	options
	tmpl *template.Template
}

// newOutput checks the format and parses its template.
func newOutput(o options) (*output, error) {
	name, text, hasText := strings.Cut(o.format, "=")
	known := slices.Contains([]string{formatTable, formatWide, formatJSON, formatYAML}, name) && !hasText
	if !known && (name != formatTemplate || text == "") {
		return nil, badFormat("", "unknown output %q: it is one of table, wide, json, yaml, go-template=TEMPLATE", o.format)
	}

	out := &output{options: o}
	if name == formatTemplate {
		t, err := template.New("-o").Funcs(template.FuncMap{"json": compactJSON}).Parse(text)
		if err != nil {
			return nil, badFormat("", "bad template: %v", strings.TrimPrefix(err.Error(), "template: "))
		}
		out.tmpl = t
	}

	out.format = name
	return out, nil
}

// badFormat is the error for a format that the user typed wrong.
func badFormat(hint, format string, args ...any) error {
	return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// human reports whether the output is for a person.
func (o *output) human() bool { return o.format == formatTable || o.format == formatWide }

// wide reports whether the output shows all columns.
func (o *output) wide() bool { return o.format == formatWide }

// print writes a value in the chosen format. For a person it calls screen, or writes only the ids
// with -q.
func (o *output) print(value any, ids []string, screen func(w *bytes.Buffer) error) error {
	var b bytes.Buffer
	var err error

	switch {
	case o.human() && o.quiet:
		for _, id := range ids {
			b.WriteString(id + "\n")
		}
	case o.human():
		err = screen(&b)
	default:
		err = o.encode(&b, value, true)
	}

	if err != nil {
		return err
	}

	return o.write(b.Bytes())
}

// show writes a screen for a person. With -q, or in a format for programs, it writes nothing.
func (o *output) show(screen func(w *bytes.Buffer) error) error {
	if !o.human() || o.quiet {
		return nil
	}
	var b bytes.Buffer
	if err := screen(&b); err != nil {
		return err
	}
	return o.write(b.Bytes())
}

// stream writes one value of a sequence that arrives over time. A person gets line instead.
func (o *output) stream(value any, line string) error {
	if o.human() {
		return o.write([]byte(line + "\n"))
	}

	var b bytes.Buffer
	if o.format == formatYAML {
		b.WriteString("---\n")
	}

	if err := o.encode(&b, value, false); err != nil {
		return err
	}

	return o.write(b.Bytes())
}

// say tells a person the result. It writes nothing with -q, or in a format for programs.
func (o *output) say(format string, args ...any) error {
	if !o.human() || o.quiet {
		return nil
	}
	return o.write([]byte(printable(fmt.Sprintf(format, args...)) + "\n"))
}

// note writes a remark to stderr that is not part of the output.
func (o *output) note(format string, args ...any) {
	_, _ = fmt.Fprintln(o.stderr, printable(fmt.Sprintf(format, args...)))
}

func (o *output) write(b []byte) error {
	if _, err := o.stdout.Write(b); err != nil {
		return fmt.Errorf("cannot write the output: %w", err)
	}
	return nil
}

// encode writes a value for a program. All formats use the field names of the JSON.
func (o *output) encode(b *bytes.Buffer, value any, indent bool) error {
	text, err := marshal(value)
	if err != nil {
		return fmt.Errorf("cannot encode the output: %w", err)
	}

	switch {
	case o.format == formatTemplate:
		return o.template(b, text)
	case o.format == formatYAML:
		return toYAML(b, text)
	case indent:
		err = json.Indent(b, text, "", "  ")
	default:
		b.Write(text)
	}

	b.WriteByte('\n')
	return err
}

// template runs the template on the decoded JSON. Integers stay integers, so that templates can
// compare them.
func (o *output) template(b *bytes.Buffer, text []byte) error {
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
	b, err := marshal(v)
	return string(b), err
}

// marshal is api.MarshalJSON, which escapes characters that a terminal would obey.
func marshal(v any) ([]byte, error) { return api.MarshalJSON(v) }

// toYAML writes JSON as YAML, with the fields in the same order.
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

	// The escapes of printable are valid YAML, because blockStyle puts such values in double
	// quotes.
	b.WriteString(printable(plain.String()))

	return enc.Close()
}

func blockStyle(n *yaml.Node) {
	n.Style = 0
	if n.Kind == yaml.ScalarNode && printable(n.Value) != n.Value {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, c := range n.Content {
		blockStyle(c)
	}
}
