package api

import (
	"bytes"
	"encoding/json"
	"errors"
)

// Literal is the value of a secret on its way to the agent. It is behind a pointer, so that no
// printer or logger shows it. Only its JSON does.
type Literal struct{ value *string }

// NewLiteral wraps a value.
func NewLiteral(value string) Literal { return Literal{&value} }

// Reveal returns the value, and whether there is one.
func (l Literal) Reveal() (value string, ok bool) {
	if l.value == nil {
		return "", false
	}
	return *l.value, true
}

// String hides the value.
func (Literal) String() string { return "***" }

// GoString hides the value from %#v.
func (Literal) GoString() string { return "***" }

// MarshalJSON encodes the value itself. That is safe because it travels to the agent over a local
// socket.
func (l Literal) MarshalJSON() ([]byte, error) { return json.Marshal(l.value) }

// UnmarshalJSON undoes MarshalJSON.
func (l *Literal) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &l.value) }

// ErrSecret is returned for a value that cannot be a secret. The message contains no part of the
// value.
var ErrSecret = errors.New("a secret is a text, or one of {file: PATH}, {credential: NAME}, {env: NAME}, {sealed: true}")

// UnmarshalJSON reads a plain string as a literal and refuses unknown keys. No error repeats any of
// the input.
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
