package harness

import (
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/csitest"
)

// PlantedSecrets contains the values of the test's secrets by name. Only the plugin may see these
// values; they must not appear in a file, an answer or another process.
var PlantedSecrets = map[string]string{
	"literal": "pl4nt3d-l1t3r4l", "file": "pl4nt3d-f1l3", "credential": "pl4nt3d-cr3d", "env": "pl4nt3d-3nv",
}

// ExpectSecrets asserts that the plugin received at least one call of the given method since a
// mark, and that each of these calls contained exactly the given secrets.
func (h Recorded) ExpectSecrets(since int64, method string, want map[string]string) {
	h.T.Helper()
	all, err := csitest.ReadJournal(h.Config.JournalPath())
	h.Must(err)
	calls := all.Since(since).Only(method)
	if len(calls) == 0 {
		h.T.Errorf("no %s was sent", method)
	}
	for _, c := range calls {
		if len(c.SecretSums) != len(want) {
			h.T.Errorf("%s carried the secrets %v", method, c.SecretKeys)
		}
		for name, value := range want {
			if c.SecretSums[name] != csitest.Sum(value) {
				h.T.Errorf("%s carried another value of %q", method, name)
			}
		}
	}
}

// HuntSecrets fails the test if the text contains a secret from PlantedSecrets, either unchanged or
// in a common encoding.
func HuntSecrets(t testing.TB, where, text string) {
	t.Helper()
	for name, value := range PlantedSecrets {
		for _, form := range []string{
			value, hex.EncodeToString([]byte(value)), base64.RawStdEncoding.EncodeToString([]byte(value)), base64.RawURLEncoding.EncodeToString([]byte(value)),
		} {
			if i := strings.Index(text, form); i >= 0 {
				t.Errorf("%s: the %s secret stands in %q", where, name, text[max(0, i-200):i])
			}
		}
	}
}
