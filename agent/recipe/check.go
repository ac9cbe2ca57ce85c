package recipe

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxSecret is the maximum size of a secret, in bytes. The agent reads no larger secret file.
const MaxSecret = 64 << 10

// maxValue is the maximum length of a value, in bytes.
const maxValue = 4096

// CheckValue returns an error if a text cannot be the value of a setting.
func (r *Recipe) CheckValue(name, text string) error {
	v, ok := r.value(name)
	switch _, secret := r.secret(name); {
	case secret:
		return errors.New("it is a secret, and a command line shows it to other users")
	case !ok && len(r.Values) == 0:
		return fmt.Errorf("%s has no values to set", r.Name)
	case !ok:
		return fmt.Errorf("%s has no such value; its values are %s", r.Name, strings.Join(r.ValueNames(), ", "))
	case text == "":
		return errors.New("the value is empty")
	case len(text) > maxValue:
		return fmt.Errorf("the value has more than %d bytes", maxValue)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl):
		return errors.New("the value contains control characters")
	case len(v.Choices) > 0 && !slices.Contains(v.Choices, text):
		return fmt.Errorf("the value can be %s", strings.Join(v.Choices, ", "))
	case v.Number && (len(text) > 9 || strings.Trim(text, "0123456789") != ""):
		return errors.New("the value is a whole number")
	}
	return nil
}

// ValueNames returns the names of the values that a user can set.
func (r *Recipe) ValueNames() []string {
	var names []string
	for _, v := range r.Values {
		names = append(names, v.Name)
	}
	return names
}

// SecretNames returns the names of the secrets that a user can set.
func (r *Recipe) SecretNames() []string {
	var names []string
	for _, s := range r.Secrets {
		names = append(names, s.Name)
	}
	return names
}

// assignment is the start of a line of an environment file.
var assignment = regexp.MustCompile(`^(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_-]*)[ \t]*=[^=]`)

// CleanSecret returns the content of a secret as it must be stored: without one newline at its end. It
// returns an error for a content that cannot be the secret. The error does not contain the content.
func (r *Recipe) CleanSecret(name string, content []byte) ([]byte, error) {
	s, ok := r.secret(name)
	if !ok && len(r.Secrets) == 0 {
		return nil, fmt.Errorf("%s has no secrets", r.Name)
	}
	if !ok {
		return nil, fmt.Errorf("%s has no such secret; its secrets are %s", r.Name, strings.Join(r.SecretNames(), ", "))
	}
	if len(content) > MaxSecret {
		return nil, fmt.Errorf("the secret has more than %d bytes", MaxSecret)
	}

	if s.Document {
		return content, checkDocument(content)
	}

	content = bytes.TrimSuffix(bytes.TrimSuffix(content, []byte("\n")), []byte("\r"))
	return content, checkSecret(name, content)
}

func checkDocument(content []byte) error {
	switch {
	case len(bytes.TrimSpace(content)) == 0:
		return errors.New("the secret is empty")
	case !utf8.Valid(content) || bytes.ContainsFunc(content, func(c rune) bool { return unicode.IsControl(c) && !strings.ContainsRune("\n\r\t", c) }):
		return errors.New("the secret contains control characters")
	}
	return nil
}

func checkSecret(name string, content []byte) error {
	switch {
	case len(bytes.TrimSpace(content)) == 0:
		return errors.New("the secret is empty")
	case !utf8.Valid(content) || bytes.ContainsFunc(content, unicode.IsControl):
		return errors.New("the secret contains control characters, or has several lines; it must be the value alone")
	}

	m := assignment.FindSubmatch(content)
	if m == nil {
		return nil
	}
	// A password may contain "=". A name in capitals, and the name of the secret, are no part of it.
	left := string(m[1])
	if left == strings.ToUpper(left) && len(left) > 1 || strings.EqualFold(left, name) {
		return errors.New("the secret has the form NAME=VALUE; it must be the value alone")
	}
	return nil
}
