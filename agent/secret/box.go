package secret

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/crypto/curve25519"
	"golang.org/x/crypto/nacl/box"
)

// Box encrypts messages between the agents of a cluster. Each agent has a key pair. A message is
// sealed with the public key of its receiver (NaCl box, with an ephemeral key of the sender).
type Box struct {
	private, public [boxKey]byte
}

// boxKey is the length of both keys, in bytes.
const boxKey = 32

// OpenBox returns the Box whose private key is in a file. If the file does not exist, OpenBox
// creates the key. Only the owner of the file can read it.
func OpenBox(file string) (*Box, error) {
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		raw, err = makeBoxKey(file)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot use the key %s: %w", file, err)
	}
	if len(raw) != boxKey {
		return nil, fmt.Errorf("cannot use the key %s: it has %d bytes, not %d; remove the file, and the agent makes another key", file, len(raw), boxKey)
	}

	b := &Box{}
	copy(b.private[:], raw)
	public, err := curve25519.X25519(b.private[:], curve25519.Basepoint)
	if err != nil {
		return nil, fmt.Errorf("cannot use the key %s: %w", file, err)
	}
	copy(b.public[:], public)
	return b, nil
}

// makeBoxKey creates the file with a private key.
func makeBoxKey(file string) ([]byte, error) {
	raw := make([]byte, boxKey)
	_, _ = rand.Read(raw) // rand.Read never returns an error

	tmp := file + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}

	_, err = f.Write(raw)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(tmp, file)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(tmp))
	}
	return raw, syncDir(filepath.Dir(file))
}

// PublicKey returns the key with which other agents seal messages to this one.
func (b *Box) PublicKey() []byte { return b.public[:] }

// Seal encrypts a message for the agent with the given public key.
func (b *Box) Seal(message, key []byte) ([]byte, error) {
	if len(key) != boxKey {
		return nil, fmt.Errorf("cannot seal a message: the receiver's public key has %d bytes, not %d", len(key), boxKey)
	}
	return box.SealAnonymous(nil, message, (*[boxKey]byte)(key), rand.Reader)
}

// Open decrypts a message that another agent has sealed for this one.
func (b *Box) Open(sealed []byte) ([]byte, error) {
	message, ok := box.OpenAnonymous(nil, sealed, &b.public, &b.private)
	if !ok {
		return nil, errors.New("cannot open a sealed message: it was sealed for another host, or was changed")
	}
	return message, nil
}
