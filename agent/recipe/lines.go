package recipe

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/volagent/volagent/agent/pluginfile"
)

// A template consists of lines. In a line, {{NAME}} stands for a value. {{secret.NAME}} stands for a
// secret, and {{config.NAME}} for the path of a configuration file. {{runtime}}, {{pull}}, {{image}} and
// {{id}} are always known. A line that begins with "?NAME " or "?NAME|NAME " is used only if one of these is set.
// Otherwise the line appears as a comment with the example of the value.
var (
	variable  = regexp.MustCompile(`\{\{([a-z0-9.-]+)\}\}`)
	condition = regexp.MustCompile(`^( *)\?([a-z0-9.|-]+) (.*)$`)
	// scalarAt splits a line of YAML before its value.
	scalarAt = regexp.MustCompile(`^( *(?:- )?(?:[A-Za-z_][A-Za-z0-9_.-]*: )?)(.*)$`)
	// plain is a YAML text that needs no quotes in any position of the templates.
	plain = regexp.MustCompile(`^[A-Za-z0-9/._$<-][A-Za-z0-9/._=@+%:$(){}<>-]*$`)
)

// lookup finds the text that stands for a variable. The result set reports whether a user has given it,
// or whether it has a default.
type lookup func(name string) (text string, set bool)

// quoting renders the variables of one line.
type quoting func(line string, find func(name string) string) string

// expand renders a template.
func expand(template string, find lookup, quote quoting, comment string) string {
	var b strings.Builder
	get := func(name string) string {
		text, _ := find(name)
		return text
	}

	for line := range strings.Lines(template) {
		line = strings.TrimSuffix(line, "\n")
		m := condition.FindStringSubmatch(line)
		if m == nil {
			b.WriteString(quote(line, get) + "\n")
			continue
		}

		given := false
		for name := range strings.SplitSeq(m[2], "|") {
			_, set := find(name)
			given = given || set
		}

		switch {
		case given:
			b.WriteString(quote(m[1]+m[3], get) + "\n")
		case comment != "":
			b.WriteString(m[1] + comment + quote(m[3], get) + "\n")
		}
	}

	return b.String()
}

// yamlLine renders a line of YAML. It quotes the whole value of the line if a part of it needs quotes.
func yamlLine(line string, find func(name string) string) string {
	if !variable.MatchString(line) {
		return line
	}

	m := scalarAt.FindStringSubmatch(line)
	if strings.HasPrefix(m[2], "{") && !strings.HasPrefix(m[2], "{{") { // a mapping, such as {file: …}
		return m[1] + variable.ReplaceAllStringFunc(m[2], func(v string) string { return yamlText(find(nameOf(v))) })
	}

	// A comment after the value is not part of it.
	value, note, noted := strings.Cut(m[2], "   # ")
	out := m[1] + yamlText(variable.ReplaceAllStringFunc(value, func(v string) string { return find(nameOf(v)) }))
	if noted {
		out += "   # " + note
	}
	return out
}

// yamlText returns a text as a YAML scalar.
func yamlText(s string) string {
	if plain.MatchString(s) && !strings.HasSuffix(s, ":") && !ambiguous(s) {
		return s
	}
	return strconv.Quote(s)
}

// ambiguous reports whether YAML reads a plain text as another type, such as null.
func ambiguous(s string) bool {
	switch strings.ToLower(s) {
	case "null", "true", "false", "yes", "no", "on", "off", ".nan", ".inf", "-":
		return true
	}
	return false
}

// configLine returns the quoting of a configuration file. In YAML and JSON, each variable is a quoted
// text, except for numbers and words: {{raw.NAME}} is the text of a value with Number or Choices. In INI,
// a variable is the escaped text, and the template has the quotes.
func configLine(format string) quoting {
	return func(line string, find func(name string) string) string {
		return variable.ReplaceAllStringFunc(line, func(v string) string {
			name, raw := strings.CutPrefix(nameOf(v), "raw.")
			text := find(name)
			switch {
			case raw:
				return text
			case format == FormatINI:
				return iniEscapes.Replace(text)
			default:
				return quoted(text)
			}
		})
	}
}

// iniEscapes escapes a text between the double quotes of an INI file, as gcfg and git-config(1) do.
var iniEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// quoted returns a text as JSON, which is also YAML. It does not escape the characters of placeholders.
func quoted(text string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(text); err != nil {
		panic(fmt.Sprintf("a text cannot be quoted: %v", err)) // impossible for a text
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func nameOf(v string) string { return variable.FindStringSubmatch(v)[1] }

func placeholder(name string) string { return pluginfile.Placeholder(name) }
