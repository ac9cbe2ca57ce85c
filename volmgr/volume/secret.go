package volume

// SecretRef names where a secret is read at the moment a call needs it.
// Exactly one field is set.
type SecretRef struct {
	File       string `json:"file,omitempty"`
	Credential string `json:"credential,omitempty"`
	Env        string `json:"env,omitempty"`
}

// Secret holds a secret's value behind a pointer, so that no printer, logger
// or encoder that walks a structure can reach it.
type Secret struct{ value *string }

// NewSecret wraps a value.
func NewSecret(v string) Secret { return Secret{value: &v} }

// Reveal returns the value. The one caller is the gRPC client.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// String hides the value.
func (Secret) String() string { return "***" }

// GoString hides the value from %#v.
func (Secret) GoString() string { return "***" }

// MarshalText hides the value from encoders.
func (Secret) MarshalText() ([]byte, error) { return []byte("***"), nil }

// Secrets are what one RPC is given.
type Secrets map[string]Secret
