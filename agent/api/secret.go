package api

import (
	"bytes"
	"encoding/json"
	"errors"
)

// Literal is the value of a secret in a request to the agent. A pointer hides the value from
// printers and loggers. Only the JSON contains it.
type Literal struct{ value *string }

// NewLiteral returns a Literal with the given value.
func NewLiteral(value string) Literal { return Literal{&value} }

// Reveal returns the value. It also reports whether there is a value.
func (l Literal) Reveal() (value string, ok bool) {
	if l.value == nil {
		return "", false
	}
	return *l.value, true
}

// String returns a mask instead of the value.
func (Literal) String() string { return "***" }

// GoString returns a mask instead of the value, for the verb %#v.
func (Literal) GoString() string { return "***" }

// MarshalJSON encodes the value itself. This is safe, because the JSON only goes to the agent over
// a local socket.
func (l Literal) MarshalJSON() ([]byte, error) { return json.Marshal(l.value) }

// UnmarshalJSON decodes the output of MarshalJSON.
func (l *Literal) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &l.value) }

// ErrSecret reports a value that cannot be a secret. Its message contains no part of the value.
var ErrSecret = errors.New("a secret is a text, or one of {file: PATH}, {credential: NAME}, {env: NAME}, {sealed: true}")

// UnmarshalJSON reads a plain string as a literal and rejects unknown keys. Its errors contain no
// part of the input.
func (s *Secret) UnmarshalJSON(b []byte) error {
	b = bytes.TrimSpace(b)
	if len(b) > 0 && b[0] == '"' {
		if json.Unmarshal(b, &s.Literal) != nil {
			return ErrSecret
		}
		return nil
	}
	if len(b) == 0 || b[0] != '{' {
		return ErrSecret
	}

	type plain Secret
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if dec.Decode((*plain)(s)) != nil {
		return ErrSecret
	}
	return nil
}
