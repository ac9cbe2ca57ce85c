package spec

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// writeHCL writes a volume in the form of Nomad's volume specification. It uses only syntax that is
// valid in HCL 1 and HCL 2. A block cannot contain a name that is not an HCL identifier. For such a
// name, writeHCL writes an attribute instead of a block.
func writeHCL(volume *yaml.Node) []byte {
	var w hclWriter
	for i := 0; i < len(volume.Content); i += 2 {
		name, value := volume.Content[i].Value, volume.Content[i+1]
		switch name {
		case "capabilities":
			for _, c := range value.Content {
				w.block("capability", func() { w.fields(c) })
			}
		case "topology_request":
			w.block(name, func() {
				for i := 0; i < len(value.Content); i += 2 {
					w.block(value.Content[i].Value, func() {
						for _, segments := range value.Content[i+1].Content {
							w.block("topology", func() { w.field("segments", segments) })
						}
					})
				}
			})
		default:
			w.field(name, value)
		}
	}

	return w.Bytes()
}

type hclWriter struct {
	bytes.Buffer

	indent string
}

func (w *hclWriter) line(format string, args ...any) {
	w.WriteString(w.indent + fmt.Sprintf(format, args...) + "\n")
}

func (w *hclWriter) block(name string, content func()) { w.nested(name+" {", content) }

func (w *hclWriter) nested(begin string, content func()) {
	w.line("%s", begin)
	w.indent += "  "
	content()
	w.indent = w.indent[2:]
	w.line("}")
}

func (w *hclWriter) fields(n *yaml.Node) {
	for i := 0; i < len(n.Content); i += 2 {
		w.field(n.Content[i].Value, n.Content[i+1])
	}
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)

// field writes a name and its value.
func (w *hclWriter) field(name string, value *yaml.Node) {
	key := name
	if !identifier.MatchString(name) {
		key = hclQuote(name)
	}

	if value.Kind != yaml.MappingNode {
		w.line("%s = %s", key, hclValue(value))
		return
	}

	plain := key == name
	for i := 0; i < len(value.Content); i += 2 {
		plain = plain && identifier.MatchString(value.Content[i].Value)
	}

	switch {
	case value.LineComment != "":
		w.line("%s = %s %s", key, hclValue(value), value.LineComment)
	case value.Style == yaml.FlowStyle:
		w.line("%s = %s", key, hclValue(value))
	case plain:
		w.block(key, func() { w.fields(value) })
	default:
		w.nested(key+" = {", func() { w.fields(value) })
	}
}

// hclValue formats a value on one line.
func hclValue(n *yaml.Node) string {
	var parts []string
	switch n.Kind {
	case yaml.SequenceNode:
		for _, item := range n.Content {
			parts = append(parts, hclValue(item))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case yaml.MappingNode:
		for i := 0; i < len(n.Content); i += 2 {
			parts = append(parts, n.Content[i].Value+" = "+hclValue(n.Content[i+1]))
		}
		return "{ " + strings.Join(parts, ", ") + " }"
	}

	if n.Tag != "!!str" {
		return n.Value
	}

	return hclQuote(n.Value)
}

// hclQuote quotes a text. It writes the start of a template ("${" or "%{") as a numeric escape,
// because no other escape has the same meaning in HCL 1 and HCL 2.
func hclQuote(s string) string {
	var b strings.Builder
	b.WriteByte('"')

	for i, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case r == '\n':
			b.WriteString(`\n`)
		case (r == '$' || r == '%') && strings.HasPrefix(s[i+1:], "{"), r < ' ', r > '~' && r <= 0xffff && !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		case r > 0xffff && !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			b.WriteRune(r)
		}
	}

	b.WriteByte('"')
	return b.String()
}
