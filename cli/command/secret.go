package command

import (
	"strings"

	"github.com/volagent/volagent/agent/api"
)

// SecretUsage describes the values of the --secret flag.
const SecretUsage = "`KEY=file:PATH`, KEY=credential:NAME or KEY=env:NAME: a secret that the agent reads; may be repeated"

// SecretRefs parses references to secrets. Its errors never contain a value, because the user may
// have typed the secret itself instead of a reference.
func SecretRefs(values []string) (map[string]api.Secret, error) {
	refs, err := KeyValues("secret", values)
	if err != nil || len(refs) == 0 {
		return nil, err
	}

	all := map[string]api.Secret{}
	for key, ref := range refs {
		kind, name, _ := strings.Cut(ref, ":")
		var s api.Secret
		into := map[string]*string{"file": &s.File, "credential": &s.Credential, "env": &s.Env}[kind]
		if into == nil || name == "" {
			return nil, Usage("", "--secret %s needs file:PATH, credential:NAME or env:NAME; a secret itself is refused", key)
		}
		*into = name
		all[key] = s
	}

	return all, nil
}
