package spec

import (
	"bytes"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"go.yaml.in/yaml/v3"
)

// maxDepth is the maximum nesting of values in HCL.
const maxDepth = 32

// hclParser converts HCL to the same tree as JSON with the same fields. A block becomes a mapping.
// Several blocks with one of the names in [repeated] become a list of mappings.
//
// Nomad reads volume specifications by the rules of HCL 1. Names in blocks may have quotes or
// contain dots. A block with several fields may be written on one line. A block and an attribute
// with an object as its value mean the same. The grammar of HCL 2 allows none of these, so
// hclParser uses only the lexer of HCL 2. It ignores the lexer's error messages, because they may
// repeat a secret.
type hclParser struct {
	d      *decoder
	tokens hclsyntax.Tokens // the remaining tokens without comments; the last is the end of the file
	failed bool
}

// repeated lists the names of blocks that may occur several times.
var repeated = []string{"capability", "topology", "segments", "required", "preferred"}

// hcl parses a file in HCL. It returns nil after a syntax error.
func (d *decoder) hcl(data []byte) *yaml.Node {
	tokens, _ := hclsyntax.LexConfig(data, d.file, hcl.InitialPos)
	p := &hclParser{d: d}
	for _, t := range tokens {
		if t.Type == hclsyntax.TokenComment {
			if !bytes.HasSuffix(t.Bytes, []byte("\n")) {
				continue
			}
			t.Type = hclsyntax.TokenNewline
		}
		p.tokens = append(p.tokens, t)
	}

	begin := p.peek()
	root := p.object(begin, hclsyntax.TokenEOF, 0)
	switch {
	case p.failed:
		return nil
	case len(root.Content) > 0:
		root.Line, root.Column = root.Content[0].Line, root.Content[0].Column
	default:
		d.failAt(1, 1, "the file contains no volume")
		return nil
	}

	return root
}

func (p *hclParser) peek() hclsyntax.Token { return p.tokens[0] }

// next removes and returns the next token. It never removes the token for the end of the file.
func (p *hclParser) next() hclsyntax.Token {
	t := p.tokens[0]
	if t.Type != hclsyntax.TokenEOF {
		p.tokens = p.tokens[1:]
	}
	return t
}

func (p *hclParser) skip(types ...hclsyntax.TokenType) {
	for slices.Contains(types, p.peek().Type) {
		p.next()
	}
}

// fail records the first mistake and stops the parser, because later error positions could be
// wrong.
func (p *hclParser) fail(at hclsyntax.Token, format string, args ...any) {
	if !p.failed {
		p.d.failAt(at.Range.Start.Line, at.Range.Start.Column, format, args...)
	}
	p.failed, p.tokens = true, p.tokens[len(p.tokens)-1:]
}

func node(at hclsyntax.Token, kind yaml.Kind, tag, value string) *yaml.Node {
	return &yaml.Node{Kind: kind, Tag: tag, Value: value, Line: at.Range.Start.Line, Column: at.Range.Start.Column}
}

// object parses pairs of names and values up to the token end, and removes that token from the
// input.
func (p *hclParser) object(open hclsyntax.Token, end hclsyntax.TokenType, depth int) *yaml.Node {
	n := node(open, yaml.MappingNode, "!!map", "")
	for {
		p.skip(hclsyntax.TokenNewline)
		t := p.next()
		if t.Type == end {
			return n
		}

		key := p.key(t, open)
		if p.failed {
			return n
		}

		value := p.setting(key, depth)
		if p.failed {
			return n
		}

		add(n, key, value)
		switch after := p.peek(); {
		case after.Type == hclsyntax.TokenNewline, after.Type == hclsyntax.TokenComma:
			p.next()
		case after.Type != end && value.Kind != yaml.MappingNode:
			p.unexpected(after, open, "a new line or a comma")
		}
	}
}

// add adds a field to a mapping. If the same block occurs again and its name is in [repeated], add
// collects the blocks in a list.
func add(n, key, value *yaml.Node) {
	if value.Kind == yaml.MappingNode && slices.Contains(repeated, key.Value) {
		for i := 0; i < len(n.Content); i += 2 {
			if n.Content[i].Value != key.Value {
				continue
			}

			if first := n.Content[i+1]; first.Kind == yaml.MappingNode {
				n.Content[i+1] = listed(first)
			}

			if list := n.Content[i+1]; list.Kind == yaml.SequenceNode {
				list.Content = append(list.Content, value)
				return
			}

			break // the decoder will report the duplicate field
		}
	}

	n.Content = append(n.Content, key, value)
}

// key parses a name: a quoted text, or words that are joined by dots.
func (p *hclParser) key(t, open hclsyntax.Token) *yaml.Node {
	switch t.Type {
	case hclsyntax.TokenOQuote:
		return p.quoted(t)
	case hclsyntax.TokenIdent:
		name := string(t.Bytes)
		for p.peek().Type == hclsyntax.TokenDot {
			p.next()
			if part := p.next(); part.Type == hclsyntax.TokenIdent {
				name += "." + string(part.Bytes)
			} else {
				p.unexpected(part, open, "the rest of a name")
			}
		}

		return node(t, yaml.ScalarNode, "!!str", name)
	}

	p.unexpected(t, open, "a name")
	return nil
}

// setting parses the text after a name: either "=" and a value, or a block.
func (p *hclParser) setting(key *yaml.Node, depth int) *yaml.Node {
	t := p.next()
	switch t.Type {
	case hclsyntax.TokenEqual:
		return p.value(p.next(), depth)
	case hclsyntax.TokenOBrace:
		if n := p.value(t, depth); n != nil {
			n.Line, n.Column = key.Line, key.Column
			return n
		}
		return nil
	case hclsyntax.TokenOQuote, hclsyntax.TokenIdent:
		if label := p.afterLabel(t); label == hclsyntax.TokenOBrace {
			p.fail(t, "block %s takes no label", quote(key.Value))
			return nil
		}
	}

	p.unexpected(t, t, `"=" or "{" after `+quote(key.Value))
	return nil
}

// afterLabel skips a block label if the token t begins one. It returns the type of the next token.
func (p *hclParser) afterLabel(t hclsyntax.Token) hclsyntax.TokenType {
	if t.Type == hclsyntax.TokenOQuote {
		p.skip(hclsyntax.TokenQuotedLit)
		p.skip(hclsyntax.TokenCQuote)
	}
	return p.peek().Type
}

// value parses a value that begins with the token t.
func (p *hclParser) value(t hclsyntax.Token, depth int) *yaml.Node {
	if depth++; depth > maxDepth {
		p.fail(t, "values are nested more than %d levels deep", maxDepth)
		return nil
	}

	switch t.Type {
	case hclsyntax.TokenOQuote:
		return p.quoted(t)
	case hclsyntax.TokenOHeredoc:
		return p.heredoc(t)
	case hclsyntax.TokenNumberLit:
		return node(t, yaml.ScalarNode, "!!int", string(t.Bytes))
	case hclsyntax.TokenOBrace:
		return p.object(t, hclsyntax.TokenCBrace, depth)
	case hclsyntax.TokenOBrack:
		return p.list(t, depth)
	case hclsyntax.TokenIdent:
		return p.word(t)
	}

	p.unexpected(t, t, "a value")
	return nil
}

// word parses the words true, false and null. The error message for any other word does not repeat
// the word, because it may be a secret without quotes.
func (p *hclParser) word(t hclsyntax.Token) *yaml.Node {
	switch word := string(t.Bytes); {
	case p.peek().Type == hclsyntax.TokenOParen:
		p.fail(t, "functions are not supported: write the value itself")
	case word == "true", word == "false":
		return node(t, yaml.ScalarNode, "!!bool", word)
	case word == "null":
		return node(t, yaml.ScalarNode, "!!null", word)
	default:
		p.fail(t, "a text needs quotes, and variables are not supported: write the value itself")
	}

	return nil
}

func (p *hclParser) list(open hclsyntax.Token, depth int) *yaml.Node {
	n := node(open, yaml.SequenceNode, "!!seq", "")
	for {
		p.skip(hclsyntax.TokenNewline)
		t := p.next()
		if t.Type == hclsyntax.TokenCBrack {
			return n
		}
		if t.Type == hclsyntax.TokenEOF {
			p.unexpected(t, open, "")
			return nil
		}

		item := p.value(t, depth)
		if p.failed {
			return nil
		}

		n.Content = append(n.Content, item)
		p.skip(hclsyntax.TokenNewline)

		switch after := p.peek(); after.Type {
		case hclsyntax.TokenComma:
			p.next()
		case hclsyntax.TokenCBrack:
		default:
			p.unexpected(after, open, "a comma or the end of the list")
			return nil
		}
	}
}
