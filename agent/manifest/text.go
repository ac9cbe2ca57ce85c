package manifest

import (
	"slices"
	"strings"
)

// text is a text of the manifest after its references were resolved.
type text []piece

// piece is a part of a text: exactly one field is set.
type piece struct {
	literal  string
	variable string // name of a variable that the agent sets, or of a required value
	secret   string // name of a variable that has a secret
}

func literal(s string) text {
	if s == "" {
		return nil
	}
	return text{{literal: s}}
}

func agentVariable(name string) text { return text{{variable: name}} }

// plus returns both texts as one. Literals beside each other become one literal, so that a search
// in them finds a path that consists of several.
func (t text) plus(o text) text {
	t = slices.Clone(t) // the literals of t may belong to other texts, too
	for _, p := range o {
		if last := len(t) - 1; p.literal != "" && last >= 0 && t[last].literal != "" {
			t[last].literal += p.literal
			continue
		}
		t = append(t, p)
	}

	return t
}

// secretIn returns the name of a variable with a secret that is part of the text.
func (t text) secretIn() string {
	for _, p := range t {
		if p.secret != "" {
			return p.secret
		}
	}
	return ""
}

// raw returns the text if it is one literal.
func (t text) raw() (string, bool) {
	switch {
	case len(t) == 0:
		return "", true
	case len(t) == 1 && t[0].literal != "":
		return t[0].literal, true
	default:
		return "", false
	}
}

// String returns the text as plugin files write it. It must not contain a secret.
func (t text) String() string {
	var b strings.Builder
	for _, p := range t {
		if p.variable != "" {
			b.WriteString("${" + p.variable + "}")
		}
		b.WriteString(strings.ReplaceAll(p.literal, "${", "$${"))
	}

	return b.String()
}

// maxText is the maximum size of a text, in bytes. References to references could make a small
// manifest expand to a huge text.
const maxText = 32 << 10

// size returns the approximate size of a text, in bytes.
func (t text) size() (n int) {
	for _, p := range t {
		n += len(p.literal) + len(p.variable) + len(p.secret)
	}
	return n
}

// expand resolves the references $(NAME) in a text as Kubernetes does: $$ stands for $, and a
// reference to an unknown variable stays as it is. The function lookup returns the value of a
// variable. A result of more than maxText bytes is not complete.
func expand(s string, lookup func(name string) (text, bool)) text {
	var out text
	for {
		at := strings.IndexByte(s, '$')
		if at < 0 || at+1 >= len(s) || out.size() > maxText {
			return out.plus(literal(s))
		}

		out = out.plus(literal(s[:at]))
		switch rest := s[at+1:]; rest[0] {
		case '$':
			out, s = out.plus(literal("$")), rest[1:]
		case '(':
			name, after, closed := strings.Cut(rest[1:], ")")
			if !closed {
				return out.plus(literal(s[at:]))
			}

			value, known := lookup(name)
			if !known {
				value = literal("$(" + name + ")")
			}

			out, s = out.plus(value), after
		default:
			out, s = out.plus(literal("$")), rest
		}
	}
}

// rewrite is a path of a container that means something else here.
type rewrite struct {
	path string
	to   string // name of a variable that the agent sets
}

// apply replaces the paths in the literals of a text. The first rule that matches at a place wins,
// so longer paths come first. It also returns whether it replaced any.
func apply(rules []rewrite, t text) (out text, changed bool) {
	for _, p := range t {
		if p.literal == "" {
			out = append(out, p)
			continue
		}

		replaced, did := applyTo(rules, p.literal)
		out, changed = out.plus(replaced), changed || did
	}

	return out, changed
}

func applyTo(rules []rewrite, s string) (out text, changed bool) {
	begin := 0
	for at := 0; at < len(s); at++ {
		if !startsPath(s, at) {
			continue
		}

		for _, r := range rules {
			rest, found := strings.CutPrefix(s[at:], r.path)
			if !found || r.path == "" || rest != "" && !strings.ContainsRune("/,:; \t\n\"'", rune(rest[0])) {
				continue
			}

			out = out.plus(literal(s[begin:at])).plus(agentVariable(r.to))
			begin = at + len(r.path)
			at, changed = begin-1, true
			break
		}
	}

	return out.plus(literal(s[begin:])), changed
}

// startsPath reports whether a path may begin at an index: at the start of the text, or after a
// separator.
func startsPath(s string, at int) bool {
	return at == 0 || strings.IndexByte("=,:; \t\n\"'", s[at-1]) >= 0 || strings.HasSuffix(s[:at], unixScheme)
}
