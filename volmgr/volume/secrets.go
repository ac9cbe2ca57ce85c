package volume

import (
	"maps"
	"slices"

	"github.com/volagent/volagent/volmgr/call"
)

// checkSecrets refuses references that name no source or several.
func (v Volume) checkSecrets() error {
	for _, name := range slices.Sorted(maps.Keys(v.Secrets)) {
		switch ref := v.Secrets[name]; {
		case ref.Sources() == 0:
			return Errorf(ErrInvalid, "secret %q of volume %q names no source", name, v.ID).
				WithHint("the value itself, or one of {file: PATH}, {credential: NAME}, {env: NAME}")
		case ref.Sources() > 1:
			return Errorf(ErrInvalid, "secret %q of volume %q names more than one source", name, v.ID)
		case len(ref.Literal.Reveal()) > call.MaxSecret:
			return Errorf(ErrInvalid, "secret %q of volume %q is longer than %d bytes", name, v.ID, call.MaxSecret)
		}
	}

	return nil
}

// Keeping replaces the references with Keep by the sealed values that the volume had. It refuses
// those for which the volume had no sealed value.
func (v Volume) Keeping(had map[string]call.SecretRef) (Volume, error) {
	refs := maps.Clone(v.Secrets)
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		if !refs[name].Keep {
			continue
		}
		if had[name].Sealed == "" {
			return v, Errorf(ErrRefused, "secret %q of volume %q is to be kept as it is sealed, and the agent has no sealed value of it", name, v.ID).
				WithHint("give the value itself, or one of {file: PATH}, {credential: NAME}, {env: NAME}")
		}

		refs[name] = call.SecretRef{Sealed: had[name].Sealed}
	}

	v.Secrets = refs
	return v, nil
}
