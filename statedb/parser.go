package statedb

import (
	"bytes"
	"time"
)

// parser reads JSON as this package writes it: without white space, of numbers only those of up to 18 digits, of strings only plain
// ASCII. Anything else is strange, and so is all that comes after it.
type parser struct {
	raw     []byte
	at      int
	in      interned
	strange bool
}

// done reports whether all was read, and nothing was strange.
func (p *parser) done() bool { return !p.strange && p.at == len(p.raw) }

// is reads a byte if it comes next.
func (p *parser) is(c byte) bool {
	if p.strange || p.at >= len(p.raw) || p.raw[p.at] != c {
		return false
	}
	p.at++
	return true
}

func (p *parser) want(c byte) {
	if !p.is(c) {
		p.strange = true
	}
}

// object reads one, and calls field for each; that reads the value.
func (p *parser) object(field func(name string)) {
	p.want('{')
	if p.is('}') {
		return
	}
	for !p.strange {
		name := p.shared()
		if p.want(':'); !p.strange {
			field(name)
		}
		if p.is('}') {
			return
		}
		p.want(',')
	}
}

// list reads an array.
func list[V any](p *parser, value func() V) []V {
	all := []V{}
	p.want('[')
	if p.is(']') {
		return all
	}
	for !p.strange {
		all = append(all, value())
		if p.is(']') {
			return all
		}
		p.want(',')
	}
	return nil
}

// words reads an object that has only strings.
func (p *parser) words() map[string]string {
	all := map[string]string{}
	p.object(func(name string) { all[name] = p.own() })
	return all
}

// text reads a string; what it returns is the file's.
func (p *parser) text() []byte {
	p.want('"')
	if p.strange {
		return nil
	}
	n := bytes.IndexByte(p.raw[p.at:], '"')
	if n < 0 {
		p.strange = true
		return nil
	}
	s := p.raw[p.at : p.at+n]
	for _, c := range s {
		if c < ' ' || c == '\\' || c >= 0x80 {
			p.strange = true
			return nil
		}
	}
	p.at += n + 1
	return s
}

// own reads a string that few others are equal to.
func (p *parser) own() string { return string(p.text()) }

// shared reads a string that many are equal to.
func (p *parser) shared() string {
	s := p.text()
	if one, ok := p.in[string(s)]; ok { // no copy is made to look
		return one
	}
	one := string(s)
	p.in[one] = one
	return one
}

func (p *parser) number() (n uint64) {
	first := p.at
	for p.at < len(p.raw) && '0' <= p.raw[p.at] && p.raw[p.at] <= '9' && p.at-first < 18 {
		n = 10*n + uint64(p.raw[p.at]-'0')
		p.at++
	}
	digits := p.at - first
	if digits == 0 || digits > 1 && p.raw[first] == '0' {
		p.strange = true
	}
	return n
}

func (p *parser) truth() bool {
	const yes, no = "true", "false"
	rest := p.raw[p.at:]
	switch {
	case p.strange:
	case len(rest) >= len(yes) && string(rest[:len(yes)]) == yes:
		p.at += len(yes)
		return true
	case len(rest) >= len(no) && string(rest[:len(no)]) == no:
		p.at += len(no)
		return false
	}
	p.strange = true
	return false
}

func (p *parser) time(t *time.Time) {
	first := p.at
	if p.text(); p.strange || t.UnmarshalJSON(p.raw[first:p.at]) != nil {
		p.strange = true
	}
}
