package secret_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/volagent/volagent/agent/secret"
)

// TestBox seals a message for one host. Only this host opens it, also after a restart, and only if
// the message was not changed.
func TestBox(t *testing.T) {
	dir := t.TempDir()
	open := func(name string) *secret.Box {
		b, err := secret.OpenBox(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	a, b := open("a"), open("b")
	sealed, err := a.Seal([]byte("context"), b.PublicKey())
	if err != nil {
		t.Fatal(err)
	}

	if got, err := open("b").Open(sealed); err != nil || string(got) != "context" {
		t.Errorf("the receiver reads %q, %v", got, err)
	}
	if _, err := a.Open(sealed); err == nil {
		t.Error("another host opens the message")
	}
	sealed[len(sealed)-1] ^= 1
	if _, err := b.Open(sealed); err == nil {
		t.Error("a changed message opens")
	}
	if _, err := a.Seal(nil, nil); err == nil {
		t.Error("a message is sealed without a key")
	}

	info, err := os.Stat(filepath.Join(dir, "a"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key file has the mode %v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := secret.OpenBox(filepath.Join(dir, "a")); err == nil {
		t.Error("a short key is accepted")
	}
}
