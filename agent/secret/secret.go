// Package secret reads what secret references name, at the moment a call needs
// it and no earlier. Nothing is cached and no error repeats a value.
package secret

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/volume"
)

// maxSize is the largest secret file that is read, in bytes. CSI bounds a
// whole map of secrets to 4 KiB; the rest is room for a key file.
const maxSize = 64 << 10

// Resolver reads secrets. The zero value reads the process's own environment
// and credentials.
type Resolver struct {
	// Credentials is where systemd put the agent's credentials; empty means
	// $CREDENTIALS_DIRECTORY.
	Credentials string
	// Getenv looks a variable up; nil means os.LookupEnv.
	Getenv func(string) (string, bool)
}

// Resolve reads every reference. The error names the secret and the reference,
// never the content.
func (r Resolver) Resolve(refs map[string]volume.SecretRef) (volume.Secrets, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	out := make(volume.Secrets, len(refs))
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		v, err := r.One(refs[name])
		if err != nil {
			return nil, fmt.Errorf("cannot read secret %q: %w", name, err)
		}
		out[name] = v
	}
	return out, nil
}

// One reads a single reference. A file's one trailing newline is not part of
// the secret.
func (r Resolver) One(ref volume.SecretRef) (volume.Secret, error) {
	switch {
	case ref.File != "":
		if !filepath.IsAbs(ref.File) {
			return volume.Secret{}, fmt.Errorf("file %q is not an absolute path", ref.File)
		}
		return read(ref.File)
	case ref.Credential != "":
		return r.credential(ref.Credential)
	case ref.Env != "":
		look := r.Getenv
		if look == nil {
			look = os.LookupEnv
		}
		v, ok := look(ref.Env)
		if !ok {
			return volume.Secret{}, fmt.Errorf("the agent's environment has no %s", ref.Env)
		}
		return volume.NewSecret(v), nil
	default:
		return volume.Secret{}, errors.New("it names no source")
	}
}

func (r Resolver) credential(name string) (volume.Secret, error) {
	dir := r.Credentials
	if dir == "" {
		dir = os.Getenv("CREDENTIALS_DIRECTORY")
	}
	if dir == "" {
		return volume.Secret{}, fmt.Errorf("credential %q: the agent was given no credentials by systemd", name)
	}
	if name != filepath.Base(name) || name == "." || name == ".." {
		return volume.Secret{}, fmt.Errorf("credential %q is not a name", name)
	}
	return read(filepath.Join(dir, name))
}

func read(path string) (volume.Secret, error) {
	info, err := os.Stat(path)
	if err != nil {
		return volume.Secret{}, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxSize {
		return volume.Secret{}, fmt.Errorf("%s is not a file of at most %d bytes", path, maxSize)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return volume.Secret{}, err
	}
	return volume.NewSecret(strings.TrimSuffix(string(raw), "\n")), nil
}
