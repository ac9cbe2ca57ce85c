// Package suggest builds the commands that volagent and volctl suggest to
// people. It is the only place that puts a value into a command: ids come from
// volume files and API callers, mount points from any user who may mount, and the
// names of control groups from any process that owns one. A person pastes the
// result into a root shell, so each value must stay one argument there.
package suggest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// plain matches a word that every shell takes as it stands. A leading "=" is
// excluded because zsh replaces =NAME by the path of a program.
var plain = regexp.MustCompile(`^[A-Za-z0-9@%+:,./_-][A-Za-z0-9@%+=:,./_-]*$`)

// Command returns one simple command. The format is a command line whose words
// are separated by one space each; each %s and %d takes the next argument. A
// string is quoted if a shell needs that. A []string becomes one word for each
// element; its %s must be a word of its own.
//
// If an operand begins with "-", the options move in front of "--" and the
// operands behind it, so that no operand is read as an option. Otherwise "--"
// would change nothing, and is left out.
//
// An operand of systemctl is the name of a unit. If systemd does not allow it, the
// command is empty. Command panics if the format has more verbs than there are
// arguments.
func Command(format string, args ...any) string {
	words := split(format, args)
	if strings.HasPrefix(format, "systemctl ") && !unitsOnly(args) {
		return ""
	}
	if !needsGuard(words) {
		return join(words)
	}
	var head, options, operands []word
	for _, w := range words {
		switch {
		case w.option:
			options = append(options, w)
		case w.fixed && len(options)+len(operands) == 0:
			head = append(head, w)
		default:
			operands = append(operands, w)
		}
	}
	return join(head, options, []word{{text: "--"}}, operands)
}

// Options are an argument of Command: options with their values ("--size=1GiB"), one
// word each. Their %s must be a word of its own in the format.
type Options []string

// valued are the options of the programs that are suggested whose value is the next
// word. Other options have none, or one after "=".
var valued = []string{"--plugin", "--volume", "--for", "--type", "--instance", "--filter", "-o", "-u"}

// word is one word of a command.
type word struct {
	text   string // quoted
	fixed  bool   // no value is in it
	option bool   // the format makes it an option or the value of one
	dashed bool   // an operand whose value begins with "-"
}

// split fills the words of a format.
func split(format string, args []any) (words []word) {
	fields := strings.Split(format, " ")
	for i, field := range fields {
		n := strings.Count(field, "%")
		values := args[:n]
		args = args[n:]

		w := word{fixed: n == 0, option: i > 0 && (strings.HasPrefix(field, "-") || slices.Contains(valued, fields[i-1]))}
		if len(values) == 1 {
			if list, ok := values[0].(Options); ok {
				for _, option := range list {
					words = append(words, word{text: Quote(option), option: true})
				}
				continue
			}
		}
		if list, ok := many(values); ok {
			for _, value := range list {
				w.text, w.dashed = Quote(value), strings.HasPrefix(value, "-")
				words = append(words, w)
			}
			continue
		}
		quoted := make([]any, n)
		for j, value := range values {
			quoted[j] = value
			if s, ok := value.(string); ok {
				quoted[j] = Quote(s)
				w.dashed = w.dashed || strings.HasPrefix(field, "%") && strings.HasPrefix(s, "-")
			}
		}
		w.text = fmt.Sprintf(field, quoted...)
		words = append(words, w)
	}
	return words
}

// many returns the elements of an argument that is a list.
func many(values []any) ([]string, bool) {
	if len(values) != 1 {
		return nil, false
	}
	list, ok := values[0].([]string)
	return list, ok
}

// unitsOnly reports whether all texts among the arguments are names of units.
func unitsOnly(args []any) bool {
	for _, arg := range args {
		list, _ := arg.([]string)
		if name, ok := arg.(string); ok {
			list = []string{name}
		}
		if slices.ContainsFunc(list, func(name string) bool { return !ValidUnit(name) }) {
			return false
		}
	}
	return true
}

func needsGuard(words []word) bool {
	for _, w := range words {
		if w.dashed && !w.option {
			return true
		}
	}
	return false
}

func join(groups ...[]word) string {
	var texts []string
	for _, group := range groups {
		for _, w := range group {
			texts = append(texts, w.text)
		}
	}
	return strings.Join(texts, " ")
}

// Quote returns a value as one word of a POSIX shell. A value with characters
// that a terminal does not show as they are, such as control characters, is written
// with octal escapes between $' and ' (bash, zsh and ksh); a shell without that
// form reads a harmless other word.
func Quote(value string) string {
	switch {
	case plain.MatchString(value):
		return value
	case !utf8.ValidString(value) || strings.ContainsFunc(value, func(r rune) bool { return !unicode.IsPrint(r) }):
		return "$'" + octal(value) + "'"
	default:
		return "'" + strings.ReplaceAll(value, "'", `'\''`) + "'"
	}
}

// octal escapes every byte that is not a letter, a digit or in "/._-". So the text
// has no quote in it, in any shell.
func octal(value string) string {
	var b strings.Builder
	for i := range len(value) {
		c := value[i]
		if plain.MatchString(value[i : i+1]) {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, `\%03o`, c)
	}
	return b.String()
}
