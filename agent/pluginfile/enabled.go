package pluginfile

import (
	"bytes"
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/volmgr/plugin"
)

// keyEnabled is the key that says whether the agent uses a plugin file.
const keyEnabled = "enabled"

// These are the values of the key enabled.
const (
	wordTrue  = "true"
	wordFalse = "false"
)

// enabled returns a function that reads the key enabled.
func (r reader) enabled(disabled *bool) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		var word string
		if err := r.oneOf(keyEnabled, &word, wordTrue, wordFalse)(n); err != nil {
			return err
		}

		*disabled = word == wordFalse
		return nil
	}
}

// SetEnabled returns the text of a plugin file with another value of the key enabled. All other bytes
// stay as they are. If the file has no key enabled, SetEnabled inserts the line "enabled: false", or
// returns the text unchanged for true. It returns an error for a file that Parse refuses, and for a
// file that it cannot change without changing more than the key. In error messages, the text is called
// file.
func SetEnabled(file string, text []byte, on bool) ([]byte, error) {
	_, before, err := parse(file, text)
	if err != nil {
		return nil, err
	}
	if before.Disabled == !on {
		return text, nil
	}

	r := reader{file: file}
	root, err := r.document(text)
	if err != nil {
		return nil, err
	}

	changed, err := replaceEnabled(root, text, on)
	if err != nil {
		return nil, err
	}

	// The position of a value is the parser's, so the result is checked: no other key may differ.
	_, after, err := parse(file, changed)
	if err != nil {
		return nil, err // for example, a value is missing that only a disabled file may lack
	}
	if after.Disabled == on || !sameButEnabled(before, after) {
		return nil, fmt.Errorf("%s: cannot change the key enabled in place; write enabled: %t into the file", file, on)
	}
	return changed, nil
}

func sameButEnabled(a, b *plugin.Definition) bool {
	x, y := *a, *b
	x.Disabled, y.Disabled = false, false
	return x.Equal(&y)
}

// replaceEnabled replaces the value of the key enabled, or inserts the key before the first key.
func replaceEnabled(root *yaml.Node, text []byte, on bool) ([]byte, error) {
	word := wordFalse
	if on {
		word = wordTrue
	}

	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value != keyEnabled {
			continue
		}

		value := root.Content[i+1]
		at, err := offset(text, value.Line, value.Column)
		if quoted := value.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0; quoted {
			at++
		}
		if err != nil || at > len(text) || !bytes.HasPrefix(text[at:], []byte(value.Value)) {
			return nil, errors.New("the value of the key enabled is not a plain word")
		}
		return join(text[:at], word, text[at+len(value.Value):]), nil
	}

	first := root.Content[0]
	at, err := offset(text, first.Line, first.Column)
	if err != nil || first.Column != 1 {
		return nil, errors.New("the keys of the file do not begin at the first column")
	}
	return join(text[:at], keyEnabled+": "+word+"\n", text[at:]), nil
}

// offset returns the position of a line and column in bytes. Both begin with 1.
func offset(text []byte, line, column int) (int, error) {
	at := 0
	for range line - 1 {
		end := bytes.IndexByte(text[at:], '\n')
		if end < 0 {
			return 0, errors.New("no such line")
		}
		at += end + 1
	}

	at += column - 1
	if at > len(text) {
		return 0, errors.New("no such column")
	}
	return at, nil
}

func join(before []byte, word string, after []byte) []byte {
	out := make([]byte, 0, len(before)+len(word)+len(after))
	out = append(out, before...)
	out = append(out, word...)
	return append(out, after...)
}
