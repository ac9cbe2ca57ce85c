package secret

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/volagent/volagent/volmgr/suggest"
)

// CredentialName is the name of the systemd credential with the key. The agent uses it if systemd
// provides it.
const CredentialName = "volagent.key"

// minKey and maxKey limit the size, in bytes, of the material from which the agent derives a key. A
// new key file has the smallest size.
const (
	minKey = 32
	maxKey = 4 << 10
)

// key is a key with a name. The name reveals nothing about the key.
type key struct {
	key  []byte
	name string
}

// derive derives a key and its name from all bytes of a credential or a key file.
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

// errNoKey means that the credential or the key file does not exist.
var errNoKey = errors.New("does not exist")

// find returns the key with the given name. It first checks the credential. It then checks the key
// file, because values may be older than the credential. The error explains why neither of them
// contains the key.
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

// joined joins one or two errors in one line.
func joined(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	return fmt.Errorf("%w; %w", errs[0], errs[1])
}

// present returns the key for sealing. This is the credential or, if there is no credential, the
// key file.
func (s *Sealer) present() (key, error) {
	k, err := s.credential()
	if errors.Is(err, errNoKey) {
		return s.file()
	}
	return k, err
}

// needed returns the key for sealing. It creates the key file if there is no key.
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
	dir := s.Credentials
	if dir == "" {
		dir = os.Getenv("CREDENTIALS_DIRECTORY")
	}

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

// readKey reads a key from a file. With private, it refuses a file that other users can read, and a
// file that does not belong to the user of this process.
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

// cause removes the path from a file error, because the message already contains the path.
func cause(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// make creates the key file and syncs it to disk, because the agent may store a value that needs
// this key a moment later. No other process creates the file at the same time, because the data dir
// belongs to this agent.
func (s *Sealer) make() error {
	dir := filepath.Dir(s.KeyFile)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}

	tmp := filepath.Join(dir, ".new")
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // an agent that was killed may have left the temporary file
	}

	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}

	material := make([]byte, minKey)
	_, _ = rand.Read(material) // it never fails
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

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
