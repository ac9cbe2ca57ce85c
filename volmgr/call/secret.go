package call

// MaxSecret is the largest length of a secret's value, in bytes. CSI limits a whole map of secrets
// to 4 KiB. The higher limit permits a key file.
const MaxSecret = 64 << 10

// SecretRef names the source of a secret's value. The agent reads the value when a call needs it.
// Exactly one field is set.
type SecretRef struct {
	File       string `json:"file,omitempty"`
	Credential string `json:"credential,omitempty"`
	Env        string `json:"env,omitempty"`

	// Sealed is an encrypted value. It is valid only for one secret of one volume.
	Sealed string `json:"sealed,omitempty"`

	// Literal is a value that the agent has yet to seal. Keep is set to keep the sealed value that
	// the volume already has. Records contain neither of them.
	Literal Secret `json:"-"`
	Keep    bool   `json:"-"`
}

// Sources returns the number of fields that are set.
func (r SecretRef) Sources() (n int) {
	for _, set := range []bool{r.File != "", r.Credential != "", r.Env != "", r.Sealed != "", r.Literal.Given(), r.Keep} {
		if set {
			n++
		}
	}
	return n
}

// Secret holds a secret's value behind a pointer. A printer, logger or encoder that walks a
// structure therefore cannot reach it.
type Secret struct{ value *string }

// NewSecret returns a Secret with the given value.
func NewSecret(v string) Secret { return Secret{value: &v} }

// Given reports whether the secret has a value, even an empty one.
func (s Secret) Given() bool { return s.value != nil }

// Reveal returns the value. Only code that sends, seals or checks the value may call it.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// String returns "***" in place of the value.
func (Secret) String() string { return "***" }

// GoString returns "***" in place of the value, for the format %#v.
func (Secret) GoString() string { return "***" }

// MarshalText returns "***" in place of the value, for encoders.
func (Secret) MarshalText() ([]byte, error) { return []byte("***"), nil }

// Secrets holds the secrets that one RPC carries, by key.
type Secrets map[string]Secret
