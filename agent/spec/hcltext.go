package spec

import (
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2/hclsyntax"
	"go.yaml.in/yaml/v3"
)

// unexpected records an error for a token where the grammar requires want. The message describes
// only the kind of the token, because the token may be part of a secret.
func (p *hclParser) unexpected(t, open hclsyntax.Token, want string) {
	switch t.Type {
	case hclsyntax.TokenEOF:
		switch open.Type {
		case hclsyntax.TokenOBrace:
			p.fail(open, "this brace is not closed")
		case hclsyntax.TokenOBrack:
			p.fail(open, "this bracket is not closed")
		default:
			p.fail(t, "the file ends where %s is expected", want)
		}
	case hclsyntax.TokenCBrace:
		p.fail(t, "unexpected closing brace: %s is expected here", want)
	case hclsyntax.TokenBadUTF8:
		p.fail(t, "the file is not UTF-8")
	case hclsyntax.TokenApostrophe, hclsyntax.TokenBacktick:
		p.fail(t, "a text must be in double quotes")
	case hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
		p.fail(t, "templates are not supported: write the value itself, or $${ and %%%%{ for a literal ${ and %%{")
	case hclsyntax.TokenNewline:
		p.fail(t, "the line ends where %s is expected", want)
	case hclsyntax.TokenColon:
		p.fail(t, `unexpected colon: %s is expected here, and HCL has "=" before values`, want)
	case hclsyntax.TokenMinus:
		p.fail(t, "negative numbers are not allowed here")
	default:
		p.fail(t, "%s is expected here", want)
	}
}

// quoted reads the rest of a quoted text after the opening quote. It decodes the escapes itself,
// because the HCL parser would also normalize Unicode characters, and an external id must not
// change.
func (p *hclParser) quoted(open hclsyntax.Token) *yaml.Node {
	var b strings.Builder
	for {
		switch t := p.next(); t.Type {
		case hclsyntax.TokenCQuote:
			return node(open, yaml.ScalarNode, "!!str", b.String())
		case hclsyntax.TokenQuotedLit, hclsyntax.TokenStringLit:
			if !unescape(&b, string(t.Bytes)) {
				p.fail(t, `an escape in this text is none of \n, \r, \t, \", \\, \uXXXX, \UXXXXXXXX`)
				return nil
			}
		case hclsyntax.TokenQuotedNewline, hclsyntax.TokenEOF:
			p.fail(open, "this text is not closed in its line")
			return nil
		default:
			p.unexpected(t, open, "the rest of a text")
			return nil
		}
	}
}

// unescape decodes the escapes of a text and appends the result to b. It reports whether all
// escapes are valid.
func unescape(b *strings.Builder, s string) bool {
	for s != "" {
		i := strings.IndexAny(s, `\$%`)
		if i < 0 {
			b.WriteString(s)
			return true
		}

		b.WriteString(s[:i])
		s = s[i:]
		if s[0] != '\\' {
			b.WriteByte(s[0])
			if len(s) >= 3 && s[1] == s[0] && s[2] == '{' {
				s = s[1:]
			}
			s = s[1:]
			continue
		}

		if len(s) < 2 {
			return false
		}
		if plain, ok := escapes[s[1]]; ok {
			b.WriteByte(plain)
			s = s[2:]
			continue
		}

		digits := map[byte]int{'u': 4, 'U': 8}[s[1]]
		if digits == 0 || len(s) < 2+digits {
			return false
		}

		r, err := strconv.ParseUint(s[2:2+digits], 16, 32)
		if err != nil || r > 0x10ffff || r >= 0xd800 && r < 0xe000 {
			return false
		}

		b.WriteRune(rune(r))
		s = s[2+digits:]
	}

	return true
}

var escapes = map[byte]byte{'n': '\n', 'r': '\r', 't': '\t', '"': '"', '\\': '\\'}

// heredoc reads the rest of a heredoc after the opening token. If the heredoc starts with "<<-", it
// removes the common indent of all lines.
func (p *hclParser) heredoc(open hclsyntax.Token) *yaml.Node {
	var b strings.Builder
	for {
		switch t := p.next(); t.Type {
		case hclsyntax.TokenCHeredoc:
			text := b.String()
			if strings.HasPrefix(string(open.Bytes), "<<-") {
				text = flush(text)
			}
			return node(open, yaml.ScalarNode, "!!str", text)
		case hclsyntax.TokenStringLit, hclsyntax.TokenQuotedLit:
			b.WriteString(strings.NewReplacer("$${", "${", "%%{", "%{").Replace(string(t.Bytes)))
		case hclsyntax.TokenEOF:
			p.fail(open, "this text is not closed")
			return nil
		default:
			p.unexpected(t, open, "the rest of a text")
			return nil
		}
	}
}

// flush removes the common indent of all lines.
func flush(text string) string {
	least := len(text)
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) != "" {
			least = min(least, len(line)-len(strings.TrimLeft(line, " \t")))
		}
	}

	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(line[min(least, len(line)-len(strings.TrimLeft(line, " \t"))):])
	}

	return b.String()
}
