package secret

import (
	"cmp"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/suggest"
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
	// uses $CREDENTIALS_DIRECTORY. The sealer takes its key from the credential CredentialName, if
	// this credential exists.
	Credentials string
	// KeyFile is the path of a file with the key, for an agent that has no such credential. The
	// sealer creates the file when it seals the first value.
	KeyFile string
	// Made is called after the sealer has created the key file. Made may be nil.
	Made func(keyFile string)

	making sync.Mutex // locked while the sealer creates the key file
}

// version is the prefix of every sealed text.
const version = "v1"

// encoding is strict, so each sealed value has exactly one valid text.
var encoding = base64.RawURLEncoding.Strict()

// Seal returns a copy of refs in which every literal value is sealed for the volume. If had
// contains the same value, sealed with the current key, Seal reuses the sealed text.
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

// Same returns a copy of refs in which literals are replaced by the sealed texts in had that
// contain the same values. It reuses only texts that were sealed with the current key. If a
// reference keeps a stored value that an older key has sealed, the result contains the value as a
// literal, so that the caller can seal it again. The method creates no key.
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

// Equal returns a copy of refs in which literals are replaced by the sealed texts in had that
// contain the same values. Unlike Same, it reuses texts that were sealed with any key. Equal
// creates no key.
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

// Move returns a copy of refs in which every sealed value is sealed for another volume.
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

// current reports whether the text was sealed with the key that Seal now uses.
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
	_, _ = rand.Read(nonce) // rand.Read never returns an error
	sealed := aead.Seal(nonce, nonce, []byte(value.Reveal()), about(id, name))
	return strings.Join([]string{version, k.name, encoding.EncodeToString(sealed)}, "."), nil
}

// again is the advice in the error for a sealed value that the agent can no longer read.
const again = "give the value again: register the volume's file with it"

// Open returns a secret's value from its sealed text. The arguments id and name are the volume and
// the secret for which the value was sealed.
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
	plain := !strings.ContainsAny(parts[2], "\r\n") // the base64 decoder would ignore line breaks
	return parts[1], sealed, err == nil && plain
}

// about returns the associated data of a sealed value, which the cipher authenticates.
func about(id, name string) []byte {
	return fmt.Appendf(nil, "secret %q of volume %q", name, id)
}

// key is an encryption key with its name. The name reveals nothing about the key.
type key struct {
	key  []byte
	name string
}

// CredentialName is the name of the systemd credential that contains the key, if systemd provides
// one.
const CredentialName = "volagent.key"

// minKey and maxKey are the minimum and maximum size, in bytes, of the material from which the
// agent derives a key. A new key file has the minimum size.
const (
	minKey = 32
	maxKey = 4 << 10
)

// derive derives a key and its name from the contents of a credential or a key file.
func derive(material []byte) (k key, err error) {
	switch n := len(material); {
	case n < minKey:
		return k, fmt.Errorf("has %d bytes, but a key needs %d to %d random bytes", n, minKey, maxKey)
	case n > maxKey:
		return k, fmt.Errorf("has more than %d bytes, which is too long for a key", maxKey)
	}

	if k.key, err = hkdf.Key(sha256.New, material, nil, "volagent: the key that seals secrets", 32); err != nil {
		return k, err
	}

	name, err := hkdf.Key(sha256.New, material, nil, "volagent: the name of the key that seals secrets", 4)
	k.name = hex.EncodeToString(name)
	return k, err
}

// errNoKey means that the credential or key file does not exist.
var errNoKey = errors.New("does not exist")

// find returns the key with the given name. It checks the credential first, and then the key file,
// because old values may have been sealed with the key file. If neither contains the key, the error
// gives the reason for each.
func (s *Sealer) find(name string) (key, error) {
	var why []error
	for _, from := range []func() (key, error){s.credential, s.file} {
		k, err := from()
		switch {
		case err == nil && k.name == name:
			return k, nil
		case err != nil:
			why = append(why, err)
		}
	}

	if len(why) == 0 {
		return key{}, errors.New("which is neither the agent's credential nor its key file")
	}

	return key{}, fmt.Errorf("which the agent does not have (%w)", joined(why))
}

// joined joins one or two errors into a single line.
func joined(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	return fmt.Errorf("%w; %w", errs[0], errs[1])
}

// present returns the key that Seal uses: the key in the credential or, if there is no credential,
// the key in the key file.
func (s *Sealer) present() (key, error) {
	k, err := s.credential()
	if errors.Is(err, errNoKey) {
		return s.file()
	}
	return k, err
}

// needed returns the key that Seal uses. If there is no key, it creates the key file.
func (s *Sealer) needed() (key, error) {
	s.making.Lock()
	defer s.making.Unlock()

	k, err := s.present()
	if !errors.Is(err, errNoKey) || s.KeyFile == "" {
		return k, err
	}
	if err := s.make(); err != nil {
		return k, fmt.Errorf("cannot create key file %s: %w", s.KeyFile, err)
	}

	return s.file()
}

// credential returns the key that systemd passed to the agent.
func (s *Sealer) credential() (key, error) {
	dir := cmp.Or(s.Credentials, os.Getenv("CREDENTIALS_DIRECTORY"))
	if dir == "" {
		return key{}, fmt.Errorf("credential %s %w", CredentialName, errNoKey)
	}

	k, err := readKey(filepath.Join(dir, CredentialName), false)
	if err != nil {
		return k, fmt.Errorf("credential %s %w", CredentialName, err)
	}

	return k, nil
}

// file returns the key in the key file, which the agent itself created.
func (s *Sealer) file() (key, error) {
	if s.KeyFile == "" {
		return key{}, fmt.Errorf("a key file %w", errNoKey)
	}

	k, err := readKey(s.KeyFile, true)
	if err != nil {
		return k, fmt.Errorf("key file %s %w", s.KeyFile, err)
	}

	return k, nil
}

// readKey reads a key from a file. If private is set, readKey refuses a file that other users can
// read, and a file that does not belong to the user of this process.
func readKey(path string, private bool) (key, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return key{}, errNoKey
	case errors.Is(err, syscall.ELOOP):
		return key{}, errors.New("is a symbolic link, but must be a regular file")
	case err != nil:
		return key{}, fmt.Errorf("cannot be read: %w", cause(err))
	}
	defer f.Close() //nolint:errcheck // nothing was written

	info, err := f.Stat()
	if err != nil {
		return key{}, fmt.Errorf("cannot be read: %w", cause(err))
	}

	st, ok := info.Sys().(*syscall.Stat_t)
	switch mode := info.Mode(); {
	case !mode.IsRegular():
		return key{}, errors.New("is not a regular file")
	case private && mode.Perm()&0o077 != 0:
		return key{}, fmt.Errorf("has mode %04o, so other users may have read it; if none did: %s", mode.Perm(), suggest.Command("chmod 600 %s", path))
	case private && ok && int(st.Uid) != os.Geteuid():
		return key{}, fmt.Errorf("belongs to user %d, but must belong to user %d", st.Uid, os.Geteuid())
	}

	material, err := io.ReadAll(io.LimitReader(f, maxKey+1))
	if err != nil {
		return key{}, fmt.Errorf("cannot be read: %w", cause(err))
	}

	return derive(material)
}

// cause removes the path from a file error, because the caller's message already contains the path.
func cause(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// make creates the key file and syncs it to disk, because the agent may soon store a value that
// depends on this key. No other process can create the file at the same time, because the data dir
// belongs to this agent.
func (s *Sealer) make() error {
	dir := filepath.Dir(s.KeyFile)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}

	tmp := filepath.Join(dir, ".new")
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // a killed agent may have left a temporary file, which must be removed first
	}

	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}

	material := make([]byte, minKey)
	_, _ = rand.Read(material) // rand.Read never returns an error
	_, err = f.Write(material)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(tmp, s.KeyFile)
	}

	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := errors.Join(syncDir(dir), syncDir(filepath.Dir(dir))); err != nil {
		return err
	}
	if s.Made != nil {
		s.Made(s.KeyFile)
	}

	return nil
}

// syncDir syncs a directory to disk, so that new file names in it are durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
