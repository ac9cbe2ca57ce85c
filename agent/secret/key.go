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

	"github.com/volagent/volagent/volmgr/volume"
)

// CredentialName is the systemd credential that is the key, if the agent has it.
const CredentialName = "volagent.key"

// Sizes of what a key is made from, in bytes. The key file that is made has the
// smallest.
const (
	minKey = 32
	maxKey = 4 << 10
)

// key is a key with its name, which tells nothing about it.
type key struct {
	key  []byte
	name string
}

// derive makes a key of what a credential or a file holds, every byte of it.
func derive(material []byte) (k key, err error) {
	switch n := len(material); {
	case n < minKey:
		return k, fmt.Errorf("has %d bytes, and a key has %d to %d random ones", n, minKey, maxKey)
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

// errNoKey is why there is no key in some place.
var errNoKey = errors.New("is not there")

// find returns the key of a name: the credential or, of what was sealed while
// there was none, the key file. The error says what there is instead.
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

// joined puts errors into one line.
func joined(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	return fmt.Errorf("%w; %w", errs[0], errs[1])
}

// present returns the key that seals: the credential, else the key file.
func (s *Sealer) present() (key, error) {
	k, err := s.credential()
	if errors.Is(err, errNoKey) {
		return s.file()
	}
	return k, err
}

// needed is present, and makes the key file if there is nothing.
func (s *Sealer) needed() (key, error) {
	s.making.Lock()
	defer s.making.Unlock()
	k, err := s.present()
	if !errors.Is(err, errNoKey) || s.KeyFile == "" {
		return k, err
	}
	if err := s.make(); err != nil {
		return k, fmt.Errorf("cannot make key file %s: %w", s.KeyFile, err)
	}
	return s.file()
}

// credential is the key that systemd gave the agent.
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

// file is the key that the agent made.
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

// readKey reads a key. One that must be private is refused if anybody but its
// owner, who is this process's user, may read it.
func readKey(path string, private bool) (key, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return key{}, errNoKey
	case errors.Is(err, syscall.ELOOP):
		return key{}, errors.New("is a symbolic link, and must be the file itself")
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
		return key{}, errors.New("is not a file")
	case private && mode.Perm()&0o077 != 0:
		return key{}, fmt.Errorf("has mode %04o: others may have read it. If nobody did: %s", mode.Perm(), volume.Command("chmod 600 %s", path))
	case private && ok && int(st.Uid) != os.Geteuid():
		return key{}, fmt.Errorf("belongs to user %d, and must be user %d's", st.Uid, os.Geteuid())
	}
	material, err := io.ReadAll(io.LimitReader(f, maxKey+1))
	if err != nil {
		return key{}, fmt.Errorf("cannot be read: %w", cause(err))
	}
	return derive(material)
}

// cause is an error of a file without its path, which is said already.
func cause(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// make makes the key file, durably: what is sealed with it may be on disk a
// moment later. Nobody else makes it meanwhile: the data dir is this agent's.
func (s *Sealer) make() error {
	dir := filepath.Dir(s.KeyFile)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	tmp := filepath.Join(dir, ".new")
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // an agent that was killed may have left it
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
