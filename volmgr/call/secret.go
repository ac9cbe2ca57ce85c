package call

// MaxSecret is the maximum length of a secret's value, in bytes. CSI limits all secrets of a
// request together to 4 KiB, but a key file may be longer.
const MaxSecret = 64 << 10

// SecretRef names the source of a secret's value. The agent reads the value when a call needs it.
// Exactly one field is set.
type SecretRef struct {
	File       string `json:"file,omitempty"`
	Credential string `json:"credential,omitempty"`
	Env        string `json:"env,omitempty"`

	// Sealed is an encrypted value. It is valid only for one secret of one volume.
	Sealed string `json:"sealed,omitempty"`

	// Literal is a plain value that the agent must still encrypt. Keep requests that the volume
	// keeps the encrypted value that it already has. Stored records contain neither of these
	// fields.
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

// Secret holds a secret's value behind a pointer. Printers, loggers and encoders that walk a
// structure therefore do not reach the value.
type Secret struct{ value *string }

// NewSecret returns a Secret with the given value.
func NewSecret(v string) Secret { return Secret{value: &v} }

// Given reports whether the secret has a value. An empty value counts, too.
func (s Secret) Given() bool { return s.value != nil }

// Reveal returns the value. Only code that sends, encrypts or checks the value may call Reveal.
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

// Secrets maps keys to the secrets that one CSI call carries.
type Secrets map[string]Secret
