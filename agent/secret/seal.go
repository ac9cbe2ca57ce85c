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

// Sealer encrypts secrets that are given as values, so that no file on disk contains them in clear.
// A sealed value is the text
//
//	v1.<key>.<base64 of nonce and ciphertext>
//
// <key> names the key, in eight hex digits. The cipher is XChaCha20-Poly1305 with a random nonce.
// The volume's id and the secret's name are authenticated, too, so a sealed value cannot be used
// for another secret.
type Sealer struct {
	// Credentials is the directory of the agent's systemd credentials; empty means
	// $CREDENTIALS_DIRECTORY. The credential CredentialName is the key, if it exists.
	Credentials string
	// KeyFile is the key if there is no such credential. It is made when the first value is sealed.
	KeyFile string
	// Made is called after the key file was made. It may be nil.
	Made func(keyFile string)

	making sync.Mutex // held while the key file may be made
}

// version begins every sealed text.
const version = "v1"

// encoding is strict, so that two texts never stand for one sealed value.
var encoding = base64.RawURLEncoding.Strict()

// Seal returns references in which all literal values are sealed for a volume. A value that the
// volume already has sealed with the current key keeps its sealed text.
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

// Same returns references in which a literal value becomes the sealed text that the volume already
// has for it. It does so only if that text was sealed with the current key. A value that is kept,
// and is sealed with another key, becomes a literal, so that it can be sealed anew. Same makes no
// key.
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

// Equal returns references in which a literal value becomes the sealed text that the volume already
// has for it, regardless of the key. It makes no key.
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

// Move returns references in which the sealed values are sealed for another volume.
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

// current reports whether a text is sealed with the key that Seal would use now.
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

// again is the advice for a sealed value that cannot be opened any more.
const again = "give the value again: register the volume's file with it"

// Open returns the value that was sealed for one secret of a volume.
func (s *Sealer) Open(id, name, text string) (call.Secret, error) {
	wanted, sealed, ok := parse(text)
	if !ok {
		return call.Secret{}, errors.New("what is stored is no sealed value; " + again)
	}

	k, err := s.find(wanted)
	if err != nil {
		return call.Secret{}, fmt.Errorf("it is sealed with key %s, %w; bring that key back, or %s", wanted, err, again)
	}

	aead, err := chacha20poly1305.NewX(k.key)
	if err != nil {
		return call.Secret{}, err
	}

	value, err := open(aead, sealed, about(id, name))
	if err != nil {
		return call.Secret{}, errors.New("the sealed value is damaged, or another secret's; " + again)
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
	plain := !strings.ContainsAny(parts[2], "\r\n") // the decoder ignores them
	return parts[1], sealed, err == nil && plain
}

// about returns the additional authenticated data.
func about(id, name string) []byte {
	return fmt.Appendf(nil, "secret %q of volume %q", name, id)
}
