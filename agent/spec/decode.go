package spec

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// decoder decodes the YAML nodes of one file and collects the mistakes in the file.
type decoder struct {
	file  string
	lines int // the number of lines in the file

	// numbers is set if whole numbers may stand for texts in mappings. Nomad reads them so in HCL.
	numbers bool

	found []located
	errs  Errors
}

// fields maps the names in a mapping to the functions that read their values.
type fields map[string]func(*yaml.Node)

func isNull(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

// given reports whether n is a mapping in which the named field has a value other than null.
func given(n *yaml.Node, name string) bool {
	if n.Kind != yaml.MappingNode {
		return false
	}

	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name && !isNull(n.Content[i+1]) {
			return true
		}
	}

	return false
}

// plain returns true if a node has no anchor, alias or custom tag. Otherwise it records an error
// and returns false. Volume files need none of these features. An alias can hide the origin of a
// value, and can make a small file expand to a huge one.
func (d *decoder) plain(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		d.fail(n, noAnchors)
		return false
	}

	if n.Style&yaml.TaggedStyle != 0 {
		d.fail(n, "a tag is not supported here")
		return false
	}

	return true
}

// mapping reads a mapping. For each field, it calls the function that known has for the field's
// name. The second argument is the name of the mapping in error messages. A field with the value
// null counts as omitted.
func (d *decoder) mapping(n *yaml.Node, what string, known fields) bool {
	return d.pairs(n, what, func(key, value *yaml.Node) {
		read, ok := known[key.Value]
		switch {
		case !ok:
			names := slices.Sorted(maps.Keys(known))
			d.fail(key, "unknown field %s%s%s", quote(key.Value), in(what), meant(key.Value, names))
		case isNull(value):
		case d.plain(value):
			read(value)
		}
	})
}

// some is like mapping, but ignores unknown fields. It is for the files of other programs, whose
// fields vary between versions.
func (d *decoder) some(n *yaml.Node, what string, known fields) bool {
	return d.pairs(n, what, func(key, value *yaml.Node) {
		if read, ok := known[key.Value]; ok && !isNull(value) && d.plain(value) {
			read(value)
		}
	})
}

// pairs calls each for every key and value of a mapping. It reports an error for a key that is not
// a text, and for a repeated key.
func (d *decoder) pairs(n *yaml.Node, what string, each func(key, value *yaml.Node)) bool {
	if !d.plain(n) {
		return false
	}
	if n.Kind != yaml.MappingNode {
		d.fail(n, "%s must be a mapping of names to values, not %s", what, kind(n))
		return false
	}

	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || isNull(key) {
			d.fail(key, "a name in %s must be a text, not %s", what, kind(key))
			continue
		}

		if !d.plain(key) {
			continue
		}
		if line, ok := lines[key.Value]; ok {
			d.fail(key, "%s is given twice%s, first in line %d", quote(key.Value), in(what), line)
			continue
		}

		lines[key.Value] = key.Line
		each(key, value)
	}

	return true
}

// list calls each for every item of a list.
func (d *decoder) list(n *yaml.Node, what string, each func(*yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		d.fail(n, "%s must be a list, not %s", what, kind(n))
		return
	}

	for _, item := range n.Content {
		if d.plain(item) {
			each(item)
		}
	}
}

// text reads a string that is not empty. It refuses numbers and booleans, because a conversion
// would change values such as 0755 or yes.
func (d *decoder) text(n *yaml.Node, what string) string {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
		hint := ""
		if n.Kind == yaml.ScalarNode {
			hint = "; put it in quotes"
		}
		d.fail(n, "%s must be a text, not %s%s", what, kind(n), hint)
		return ""
	}

	if n.Value == "" {
		d.fail(n, "%s is empty", what)
	}

	return n.Value
}

// texts reads a mapping of names to texts, such as parameters. Values may be empty. Error messages
// never repeat a value.
func (d *decoder) texts(n *yaml.Node, what string) map[string]string {
	out := map[string]string{}
	d.pairs(n, what, func(key, value *yaml.Node) {
		if !d.plain(value) {
			return
		}
		if d.isText(value) {
			out[key.Value] = value.Value
			return
		}
		d.fail(value, "the value of %s in %s must be a text; put it in quotes", quote(key.Value), what)
	})

	return out
}

// wholeNumber matches the numbers that every reader writes as the same text.
var wholeNumber = regexp.MustCompile(`^(?:0|[1-9][0-9]{0,17})$`)

// isText reports whether a node is a text, or a number that may stand for one.
func (d *decoder) isText(n *yaml.Node) bool {
	if n.Kind != yaml.ScalarNode {
		return false
	}
	number := d.numbers && n.ShortTag() == "!!int" && wholeNumber.MatchString(n.Value)
	return number || n.ShortTag() == "!!str"
}

// oneOf reads a text that must be one of the choices.
func (d *decoder) oneOf(n *yaml.Node, what string, choices []string) string {
	before := len(d.errs)
	s := d.text(n, what)
	if len(d.errs) == before && !slices.Contains(choices, s) {
		d.fail(n, "unknown %s %s%s; it is one of %s", what, quote(s), meant(s, choices), joined(choices))
	}
	return s
}

func (d *decoder) failAt(line, column int, format string, args ...any) {
	e := &Error{File: d.file, Line: max(line, 1), Column: max(column, 1), Message: fmt.Sprintf(format, args...)}
	d.errs = append(d.errs, e)
}

func (d *decoder) fail(n *yaml.Node, format string, args ...any) {
	d.failAt(n.Line, n.Column, format, args...)
}

var (
	yamlLine   = regexp.MustCompile(`^line (\d+): `)
	yamlAnchor = regexp.MustCompile(`^unknown anchor '.*' referenced$`)
)

// syntax records an error of the YAML parser. It replaces the only message in which the parser
// repeats its input, because the input could be a password. The parser writes this message for a
// text that starts with "*", which it reads as an alias.
func (d *decoder) syntax(err error) {
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 0 // used if the message contains no line number

	if m := yamlLine.FindStringSubmatch(message); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			line = n
		}
		message = message[len(m[0]):]
	}

	if countsFromZero(message) {
		line++
	}

	if yamlAnchor.MatchString(message) {
		message = noAnchors + "; a text that starts with * needs quotes"
	}

	d.failAt(min(line, d.lines), 1, "%s", message)
}

// countsFromZero recognizes the messages of the YAML parser's second stage. In these messages, line
// numbers are counted from 0, or the number of the first line is missing.
func countsFromZero(message string) bool {
	rest, ok := strings.CutPrefix(message, "did not find expected ")
	if !ok {
		return false
	}

	tokens := []string{"<", "node content", "'-' indicator", "key", "','"}
	return slices.ContainsFunc(tokens, func(token string) bool { return strings.HasPrefix(rest, token) })
}

const noAnchors = "anchors and aliases are not supported"
