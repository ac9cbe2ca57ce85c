package call

// MaxSecret is the maximum length of a secret's value, in bytes. CSI limits a whole map of secrets
// to 4 KiB. The higher limit leaves room for a key file.
const MaxSecret = 64 << 10

// SecretRef names the source of a secret's value, which is read when a call needs it. Exactly one
// field is set.
type SecretRef struct {
	File       string `json:"file,omitempty"`
	Credential string `json:"credential,omitempty"`
	Env        string `json:"env,omitempty"`

	// Sealed is an encrypted value. It is valid only for one secret of one volume.
	Sealed string `json:"sealed,omitempty"`

	// Literal is a value that is about to be sealed. Keep stands for the sealed value that the
	// volume already has. No record holds either of them.
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

// Secret holds a secret's value behind a pointer, so that no printer, logger
// or encoder that walks a structure can reach it.
type Secret struct{ value *string }

// NewSecret wraps a value.
func NewSecret(v string) Secret { return Secret{value: &v} }

// Given reports whether the secret has a value, even an empty one.
func (s Secret) Given() bool { return s.value != nil }

// Reveal returns the value, for code that sends, seals or checks it.
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

// Secrets are the secrets that one RPC carries.
type Secrets map[string]Secret
