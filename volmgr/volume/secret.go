package volume

import (
	"maps"
	"slices"
)

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

// sources returns the number of fields that are set.
func (r SecretRef) sources() (n int) {
	for _, set := range []bool{r.File != "", r.Credential != "", r.Env != "", r.Sealed != "", r.Literal.value != nil, r.Keep} {
		if set {
			n++
		}
	}
	return n
}

// checkSecrets refuses references that name no source or several.
func (v Volume) checkSecrets() error {
	for _, name := range slices.Sorted(maps.Keys(v.Secrets)) {
		switch ref := v.Secrets[name]; {
		case ref.sources() == 0:
			return Errorf(ErrInvalid, "secret %q of volume %q names no source", name, v.ID).
				WithHint("the value itself, or one of {file: PATH}, {credential: NAME}, {env: NAME}")
		case ref.sources() > 1:
			return Errorf(ErrInvalid, "secret %q of volume %q names more than one source", name, v.ID)
		case len(ref.Literal.Reveal()) > MaxSecret:
			return Errorf(ErrInvalid, "secret %q of volume %q is longer than %d bytes", name, v.ID, MaxSecret)
		}
	}

	return nil
}

// Keeping replaces the references with Keep by the sealed values that the volume had. It refuses
// those for which the volume had no sealed value.
func (v Volume) Keeping(had map[string]SecretRef) (Volume, error) {
	refs := maps.Clone(v.Secrets)
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		if !refs[name].Keep {
			continue
		}
		if had[name].Sealed == "" {
			return v, Errorf(ErrRefused, "secret %q of volume %q is to be kept as it is sealed, and the agent has no sealed value of it", name, v.ID).
				WithHint("give the value itself, or one of {file: PATH}, {credential: NAME}, {env: NAME}")
		}

		refs[name] = SecretRef{Sealed: had[name].Sealed}
	}

	v.Secrets = refs
	return v, nil
}

// Secret holds a secret's value behind a pointer, so that no printer, logger
// or encoder that walks a structure can reach it.
type Secret struct{ value *string }

// NewSecret wraps a value.
func NewSecret(v string) Secret { return Secret{value: &v} }

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
