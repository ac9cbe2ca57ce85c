package secret

import (
	"crypto/cipher"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/volagent/volagent/volmgr/call"
)

// Sealer encrypts the secret values that volume files contain, so that no stored file contains them
// in clear text. A sealed value is the text
//
//	v1.<key>.<base64 of nonce and ciphertext>
//
// <key> is the name of the key, in eight hex digits. The cipher is XChaCha20-Poly1305 with a random
// nonce. It also authenticates the id of the volume and the name of the secret. A sealed value
// therefore does not open for another secret.
type Sealer struct {
	// Credentials is the directory of the agent's systemd credentials. If it is empty, the sealer
	// uses $CREDENTIALS_DIRECTORY. The key is the credential CredentialName, if it exists.
	Credentials string
	// KeyFile is the path of the key file, for an agent without this credential. The sealer creates
	// the file when it seals the first value.
	KeyFile string
	// Made is called after the sealer has created the key file. It may be nil.
	Made func(keyFile string)

	making sync.Mutex // held while the sealer may create the key file
}

// version is the prefix of every sealed text.
const version = "v1"

// encoding is strict, so that only one text represents a sealed value.
var encoding = base64.RawURLEncoding.Strict()

// Seal returns the references with every literal value sealed for the volume. If had contains the
// same value and the current key sealed it, Seal keeps this sealed text.
func (s *Sealer) Seal(id string, refs, had map[string]call.SecretRef) (map[string]call.SecretRef, error) {
	refs = s.Same(id, refs, had)
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		literal := refs[name].Literal
		if literal == (call.Secret{}) {
			continue
		}

		text, err := s.seal(id, name, literal)
		if err != nil {
			return nil, fmt.Errorf("cannot seal secret %q of volume %q: %w", name, id, err)
		}

		refs[name] = call.SecretRef{Sealed: text}
	}

	return refs, nil
}

// Same returns the references, with a literal replaced by the sealed text in had if both have the
// same value. It does so only if the current key sealed that text. If a reference keeps a value
// that another key sealed, Same returns that value as a literal, so that the caller seals it again.
// Same creates no key.
func (s *Sealer) Same(id string, refs, had map[string]call.SecretRef) map[string]call.SecretRef {
	refs = maps.Clone(refs)
	for name, ref := range refs {
		was := had[name].Sealed
		if was == "" || ref.Literal == (call.Secret{}) && !ref.Keep {
			continue
		}

		old, err := s.Open(id, name, was)
		switch current := s.current(was); {
		case err != nil:
		case ref.Keep && !current:
			refs[name] = call.SecretRef{Literal: old}
		case !ref.Keep && current && equal(old, ref.Literal):
			refs[name] = call.SecretRef{Sealed: was}
		}
	}

	return refs
}

// Equal returns the references, with a literal replaced by the sealed text in had if both have the
// same value. Any key may have sealed that text. Equal creates no key.
func (s *Sealer) Equal(id string, refs, had map[string]call.SecretRef) map[string]call.SecretRef {
	refs = maps.Clone(refs)
	for name, ref := range refs {
		was := had[name].Sealed
		if was == "" || ref.Literal == (call.Secret{}) {
			continue
		}
		if old, err := s.Open(id, name, was); err == nil && equal(old, ref.Literal) {
			refs[name] = call.SecretRef{Sealed: was}
		}
	}

	return refs
}

// equal compares two values in constant time.
func equal(a, b call.Secret) bool {
	return subtle.ConstantTimeCompare([]byte(a.Reveal()), []byte(b.Reveal())) == 1
}

// Move returns the references with every sealed value sealed for another volume.
func (s *Sealer) Move(refs map[string]call.SecretRef, from, to string) (map[string]call.SecretRef, error) {
	refs = maps.Clone(refs)
	for name, ref := range refs {
		if ref.Sealed == "" || from == to {
			continue
		}

		value, err := s.Open(from, name, ref.Sealed)
		if err != nil {
			return nil, fmt.Errorf("cannot read secret %q of volume %q: %w", name, from, err)
		}

		refs[name] = call.SecretRef{Literal: value}
	}

	return s.Seal(to, refs, nil)
}

// current reports whether the key that Seal uses now has sealed the text.
func (s *Sealer) current(text string) bool {
	k, err := s.present()
	name, _, ok := parse(text)
	return err == nil && ok && name == k.name
}

func (s *Sealer) seal(id, name string, value call.Secret) (string, error) {
	k, err := s.needed()
	if err != nil {
		return "", err
	}

	aead, err := chacha20poly1305.NewX(k.key)
	if err != nil {
		return "", err
	}

	nonce := make([]byte, aead.NonceSize(), aead.NonceSize()+len(value.Reveal())+aead.Overhead())
	_, _ = rand.Read(nonce) // it never fails
	sealed := aead.Seal(nonce, nonce, []byte(value.Reveal()), about(id, name))
	return strings.Join([]string{version, k.name, encoding.EncodeToString(sealed)}, "."), nil
}

// again is the hint for a sealed value that no longer opens.
const again = "give the value again: register the volume's file with it"

// Open returns the value that was sealed for the named secret of a volume.
func (s *Sealer) Open(id, name, text string) (call.Secret, error) {
	wanted, sealed, ok := parse(text)
	if !ok {
		return call.Secret{}, errors.New("the stored text is not a sealed value; " + again)
	}

	k, err := s.find(wanted)
	if err != nil {
		return call.Secret{}, fmt.Errorf("it is sealed with key %s, %w; restore that key, or %s", wanted, err, again)
	}

	aead, err := chacha20poly1305.NewX(k.key)
	if err != nil {
		return call.Secret{}, err
	}

	value, err := open(aead, sealed, about(id, name))
	if err != nil {
		return call.Secret{}, errors.New("the sealed value is damaged or belongs to another secret; " + again)
	}

	return call.NewSecret(string(value)), nil
}

func open(aead cipher.AEAD, sealed, about []byte) ([]byte, error) {
	if len(sealed) < aead.NonceSize() {
		return nil, errors.New("too short")
	}
	return aead.Open(nil, sealed[:aead.NonceSize()], sealed[aead.NonceSize():], about)
}

// parse splits a sealed text into the name of its key and the sealed bytes.
func parse(text string) (key string, sealed []byte, ok bool) {
	parts := strings.Split(text, ".")
	if len(parts) != 3 || parts[0] != version {
		return "", nil, false
	}

	sealed, err := encoding.DecodeString(parts[2])
	plain := !strings.ContainsAny(parts[2], "\r\n") // the decoder would ignore these characters
	return parts[1], sealed, err == nil && plain
}

// about returns the data that the cipher authenticates in addition to the value.
func about(id, name string) []byte {
	return fmt.Appendf(nil, "secret %q of volume %q", name, id)
}
