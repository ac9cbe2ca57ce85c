// Package secret reads the values of secrets, but only when a call needs them. It also encrypts the
// values that volume files contain. It caches neither values nor keys, and its errors never contain
// values.
package secret

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/untrusted"
	"github.com/volagent/volagent/volmgr/volume"
)

// Resolver reads secrets. The zero value uses the environment and the credentials of the process,
// and cannot read sealed values.
type Resolver struct {
	// Credentials is the directory of the agent's systemd credentials. If it is empty, the resolver
	// uses $CREDENTIALS_DIRECTORY.
	Credentials string
	// Getenv returns the value of an environment variable. If Getenv is nil, the resolver uses
	// os.LookupEnv.
	Getenv func(string) (string, bool)
	// Allows returns an error if the definition of a shared volume may not use a secret. Any host of
	// the cluster can write such a definition. If Allows is nil, shared volumes have no secrets.
	Allows func(call.SecretRef) error
	// Sealer reads sealed values. If Sealer is nil, the resolver refuses sealed values.
	Sealer *Sealer
}

// Of reads all secrets of a volume. An error names the secret, the volume and the reference, but
// never contains a value.
func (r Resolver) Of(v volume.Volume) (call.Secrets, error) {
	if len(v.Secrets) == 0 {
		return nil, nil
	}

	out := make(call.Secrets, len(v.Secrets))
	for _, name := range slices.Sorted(maps.Keys(v.Secrets)) {
		if err := r.check(v, name); err != nil {
			return nil, err
		}

		s, err := r.of(v, name)
		if err != nil {
			return nil, fmt.Errorf("cannot read secret %q%s: %w", name, ofVolume(v.ID), err)
		}
		out[name] = s
	}

	return out, nil
}

// check returns an error if a shared volume may not use one of its secrets. Any host of the cluster
// can write the definition of such a volume, and must not read the files of this host with it.
func (r Resolver) check(v volume.Volume, name string) error {
	switch {
	case !v.Shared:
		return nil
	case r.Allows == nil:
		return volume.Errorf(volume.ErrRefused, "shared volume %q may not use the secrets of this host", v.ID)
	}

	err := r.Allows(v.Secrets[name])
	var refused *volume.Error
	if !errors.As(err, &refused) {
		return err
	}

	named := *refused
	named.Message = fmt.Sprintf("secret %q of volume %q: %s", name, v.ID, refused.Message)
	return &named
}

// Known returns the secrets of a volume that the resolver can read. It skips all others.
func (r Resolver) Known(v volume.Volume) call.Secrets {
	out := call.Secrets{}
	for name := range v.Secrets {
		if r.check(v, name) != nil {
			continue
		}
		if s, err := r.of(v, name); err == nil {
			out[name] = s
		}
	}

	return out
}

// of reads one secret of a volume. For a shared volume, it follows no symbolic link to a file. The
// caller has called check.
func (r Resolver) of(v volume.Volume, name string) (call.Secret, error) {
	ref := v.Secrets[name]
	if !v.Shared {
		return r.one(v.ID, name, ref)
	}
	if ref.File != "" {
		return read(ref.File, untrusted.ReadPlainFile)
	}
	return r.One(ref)
}

// ofVolume returns the words of an error message that name the volume. It returns "" if the secret
// belongs to no volume.
func ofVolume(id string) string {
	if id == "" {
		return ""
	}
	return fmt.Sprintf(" of volume %q", id)
}

// one reads one secret of a volume.
func (r Resolver) one(id, name string, ref call.SecretRef) (call.Secret, error) {
	switch {
	case ref.Sealed != "" && r.Sealer != nil:
		return r.Sealer.Open(id, name, ref.Sealed)
	case ref.Sealed != "":
		return call.Secret{}, errors.New("it is sealed, but this process cannot open sealed values")
	case ref.Literal != (call.Secret{}):
		return ref.Literal, nil
	default:
		return r.One(ref)
	}
}

// One reads the secret to which a reference points. If the secret is a file, One removes a single
// newline at its end.
func (r Resolver) One(ref call.SecretRef) (call.Secret, error) {
	switch {
	case ref.File != "":
		if !filepath.IsAbs(ref.File) {
			return call.Secret{}, fmt.Errorf("file %q is not an absolute path", ref.File)
		}

		return read(ref.File, untrusted.ReadFile)

	case ref.Credential != "":
		return r.credential(ref.Credential)
	case ref.Env != "":
		look := r.Getenv
		if look == nil {
			look = os.LookupEnv
		}

		v, ok := look(ref.Env)
		if !ok {
			return call.Secret{}, fmt.Errorf("the agent's environment has no %s", ref.Env)
		}

		return call.NewSecret(v), nil

	default:
		return call.Secret{}, errors.New("the reference names no source")
	}
}

func (r Resolver) credential(name string) (call.Secret, error) {
	dir := cmp.Or(r.Credentials, os.Getenv("CREDENTIALS_DIRECTORY"))
	if dir == "" {
		return call.Secret{}, fmt.Errorf("credential %q: systemd gave the agent no credentials", name)
	}
	if name != filepath.Base(name) || name == "." || name == ".." {
		return call.Secret{}, fmt.Errorf("credential %q is not a name", name)
	}

	return read(filepath.Join(dir, name), untrusted.ReadFile)
}

func read(path string, readFile func(string, int64) ([]byte, error)) (call.Secret, error) {
	raw, err := readFile(path, call.MaxSecret)
	var failed *fs.PathError
	if err != nil && !errors.As(err, &failed) { // this error does not contain the path
		err = fmt.Errorf("%s: %w", path, err)
	}

	if err != nil {
		return call.Secret{}, err
	}

	return call.NewSecret(strings.TrimSuffix(string(raw), "\n")), nil
}
