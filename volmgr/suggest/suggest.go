// Package suggest builds the commands that volagent and volctl suggest to operators. No other
// package inserts a value into a command.
//
// The values are not trusted. Ids come from volume files and API callers. Any user who may mount
// chooses mount points, and any process that owns a control group chooses its name. An operator may
// paste a command into a root shell, so each value must remain a single argument there.
package suggest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// plain matches a word that needs no quotes in any shell. The word must not begin with "=", because
// zsh replaces =NAME with the path of a program.
var plain = regexp.MustCompile(`^[A-Za-z0-9@%+:,./_-][A-Za-z0-9@%+=:,./_-]*$`)

// Command returns one simple command. The format is a command line whose words are separated by
// single spaces. Each %s and %d consumes the next argument. Command quotes a string if a shell
// requires quotes. For an argument of type []string, each element becomes a separate word. The %s
// of such an argument must be a separate word of the format.
//
// If an operand begins with "-", Command moves the options to the front and adds "--" after them,
// so that the program does not read the operand as an option. In other cases, Command adds no "--".
//
// The operands of systemctl are names of units. If systemd does not allow one of these names,
// Command returns "". Command panics if the format has more verbs than there are arguments.
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

// Options is an argument of Command that contains options with their values, such as "--size=1GiB".
// Each option becomes one word. The %s of such an argument must be a separate word of the format.
type Options []string

// valued lists the options whose value is the next word, in all programs that the agent suggests.
// Every other option either has no value or has its value after "=".
var valued = []string{"--plugin", "--volume", "--for", "--type", "--instance", "--filter", "-o", "-u"}

// word is one word of a command.
type word struct {
	text   string // the word in its quoted form
	fixed  bool   // the word comes from the format alone
	option bool   // the format shows that the word is an option or the value of an option
	dashed bool   // the word is an operand that begins with "-"
}

// split replaces the verbs of a format with the arguments, and returns the resulting words.
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

// many returns the elements of an argument that is a list. The result is false for any other
// argument.
func many(values []any) ([]string, bool) {
	if len(values) != 1 {
		return nil, false
	}
	list, ok := values[0].([]string)
	return list, ok
}

// unitsOnly reports whether all strings in the arguments are valid unit names.
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
	return slices.ContainsFunc(words, func(w word) bool { return w.dashed && !w.option })
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

// Quote returns a value as one word of a POSIX shell. A terminal does not show some characters
// unchanged, for example control characters. If the value contains such a character, Quote writes
// octal escapes between $' and ' (for bash, zsh and ksh). A shell that does not know this form
// reads a different, harmless word.
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

// octal escapes every byte except letters, digits and "@%+:,./_-". The result therefore contains no
// character that a shell treats as a quote.
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

// Stop returns a command that ends a process. If the process belongs to a unit that is Stoppable,
// the command stops the unit. Otherwise the command sends a signal to the process.
func Stop(unit string, pid int) string {
	if Stoppable(unit) {
		return Command("systemctl stop %s", unit)
	}
	return Command("kill %d", pid)
}
