package api

import (
	"bytes"
	"encoding/json"
	"errors"
)

// ErrLiteralSecret is returned when a secret is given as a plain value. The
// value is not part of the message.
var ErrLiteralSecret = errors.New("a literal secret is refused: give {file: PATH}, {credential: NAME} or {env: NAME}")

// UnmarshalJSON refuses literals and unknown keys, without repeating them.
func (s *Secret) UnmarshalJSON(b []byte) error {
	if b = bytes.TrimSpace(b); len(b) > 0 && b[0] != '{' {
		return ErrLiteralSecret
	}
	type plain Secret
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if dec.Decode((*plain)(s)) != nil {
		return ErrLiteralSecret
	}
	return nil
}
