package secret_test

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/secret"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

type refs = map[string]call.SecretRef

// newSealer returns a sealer with an empty credentials directory, and a counter of the key files
// that the sealer creates.
func newSealer(t *testing.T) (s *secret.Sealer, made *int) {
	t.Helper()
	made = new(int)
	s = &secret.Sealer{Credentials: t.TempDir(), KeyFile: filepath.Join(t.TempDir(), "keys", "secrets.key")}
	s.Made = func(path string) {
		if path != s.KeyFile {
			t.Errorf("told of %s", path)
		}
		*made++
	}
	return s, made
}

func seal(t *testing.T, s *secret.Sealer, id, value string, had refs) refs {
	t.Helper()
	out, err := s.Seal(id, refs{"key": {Literal: call.NewSecret(value)}}, had)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// opened returns the value of a volume's secret, or the error message if the secret cannot be read.
func opened(s *secret.Sealer, id string, r refs) string {
	got, err := secret.Resolver{Sealer: s}.Of(volume.Volume{ID: id, Secrets: r})
	if err != nil {
		return err.Error()
	}
	return got["key"].Reveal()
}

func mustSay(t *testing.T, what, got string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(got, w) {
			t.Errorf("%s: %q does not say %q", what, got, w)
		}
	}
}

func TestSeal(t *testing.T) {
	s, made := newSealer(t)
	one := seal(t, s, "data", planted, nil)
	text := one["key"].Sealed
	if text == "" || strings.Contains(text, planted) || strings.Contains(text, base64.RawURLEncoding.EncodeToString([]byte(planted))) || one["key"].Literal != (call.Secret{}) {
		t.Errorf("sealed as %+v", one)
	}
	if got := opened(s, "data", one); got != planted {
		t.Errorf("opened: %q", got)
	}
	if again := seal(t, s, "data", planted, one); again["key"] != one["key"] {
		t.Error("the same value is sealed anew")
	}
	if fresh := seal(t, s, "data", planted, nil); fresh["key"] == one["key"] {
		t.Error("two sealings are alike: the nonce is not random")
	}
	other := seal(t, s, "data", "other", one)
	if got := opened(s, "data", other); got != "other" {
		t.Errorf("another value: %q", got)
	}
	if got := s.Same("data", refs{"key": {Literal: call.NewSecret(planted)}}, other)["key"]; got.Sealed != "" {
		t.Error("another value passes for the same")
	}
	for _, value := range []string{"", "\x00", strings.Repeat("x", call.MaxSecret)} {
		if got := opened(s, "data", seal(t, s, "data", value, nil)); got != value {
			t.Errorf("a value of %d bytes: %q", len(value), got)
		}
	}
	if kept, err := s.Seal("data", refs{"f": {File: "/f"}, "s": one["key"]}, nil); err != nil || kept["f"].File != "/f" || kept["s"] != one["key"] {
		t.Errorf("what is no literal: %+v, %v", kept, err)
	}
	if *made != 1 {
		t.Errorf("%d keys were made", *made)
	}
}

// TestSealedIsBound checks that Open refuses a sealed value under the name of another secret, and a
// damaged sealed value.
func TestSealedIsBound(t *testing.T) {
	s, _ := newSealer(t)
	one := seal(t, s, "data", planted, nil)
	text := one["key"].Sealed
	bad := map[string]string{
		"another volume": opened(s, "other", one),
		"another secret": func() string {
			_, err := s.Open("data", "other", text)
			return err.Error()
		}(),
		"cut off":    opened(s, "data", refs{"key": {Sealed: text[:len(text)-4]}}),
		"cut short":  opened(s, "data", refs{"key": {Sealed: text[:14]}}),
		"changed":    opened(s, "data", refs{"key": {Sealed: text[:20] + flip(text[20]) + text[21:]}}),
		"no base64":  opened(s, "data", refs{"key": {Sealed: text[:20] + "!" + text[21:]}}),
		"no version": opened(s, "data", refs{"key": {Sealed: "v9" + text[2:]}}),
		"nothing":    opened(s, "data", refs{"key": {Sealed: "x"}}),
	}
	for what, got := range bad {
		mustSay(t, what, got, "give the value again")
		if strings.Contains(got, planted) {
			t.Errorf("%s: %q", what, got)
		}
	}
	moved, err := s.Move(one, "data", "other")
	if err != nil || opened(s, "other", moved) != planted {
		t.Errorf("moved: %v, %v", err, opened(s, "other", moved))
	}
	if same, err := s.Move(one, "data", "data"); err != nil || same["key"] != one["key"] {
		t.Errorf("moved to where it is: %+v, %v", same, err)
	}
	if _, err := s.Move(one, "nobody", "other"); err == nil {
		t.Error("what does not open is moved")
	}
}

func flip(b byte) string {
	if b == 'A' {
		return "B"
	}
	return "A"
}

// TestKeyFile checks that the sealer creates the key file only once, and only when it seals a
// value. The file must be readable only by its owner.
func TestKeyFile(t *testing.T) {
	s, _ := newSealer(t)
	s.Same("data", refs{"key": {Literal: call.NewSecret(planted)}}, refs{"key": {Sealed: "v1.00000000.AAAA"}})
	opened(s, "data", refs{"key": {Sealed: "v1.00000000.AAAA"}})
	if _, err := os.Stat(filepath.Dir(s.KeyFile)); err == nil {
		t.Error("a key was made to read")
	}
	dir := filepath.Dir(s.KeyFile)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, ".new"), "of an agent that was killed")
	one := seal(t, s, "data", planted, nil)
	raw, err := os.ReadFile(s.KeyFile)
	info, serr := os.Stat(s.KeyFile)
	if err != nil || serr != nil || len(raw) != 32 || info.Mode() != 0o600 || bytes.Contains(raw, []byte("killed")) {
		t.Errorf("the key file: %d bytes, mode %v, %v, %v", len(raw), info.Mode(), err, serr)
	}
	if names, _ := filepath.Glob(filepath.Join(dir, "*")); len(names) != 1 {
		t.Errorf("beside the key: %v", names)
	}
	if names, _ := filepath.Glob(filepath.Join(dir, ".*")); len(names) != 0 {
		t.Errorf("beside the key: %v", names)
	}

	// After the loss of the key file, Open must not create a new one. The error must tell the
	// operator what to do.
	if err := os.Rename(s.KeyFile, s.KeyFile+".away"); err != nil {
		t.Fatal(err)
	}
	name := strings.Split(one["key"].Sealed, ".")[1]
	mustSay(t, "a lost key", opened(s, "data", one), `cannot read secret "key" of volume "data": it is sealed with key `+name, s.KeyFile, "give the value again")
	two := seal(t, s, "data", planted, one)
	if two["key"] == one["key"] || opened(s, "data", two) != planted {
		t.Error("after the loss of the key the value is not sealed with another")
	}
	mustSay(t, "another key", opened(s, "data", one), "it is sealed with key "+name)
	if err := os.Rename(s.KeyFile+".away", s.KeyFile); err != nil {
		t.Fatal(err)
	}
	if got := opened(s, "data", one); got != planted {
		t.Errorf("with the key back: %q", got)
	}
}

// TestBadKeys checks that the sealer refuses an invalid key, and a key file that other users can
// read. The error must tell the operator what to do.
func TestBadKeys(t *testing.T) {
	for words, spoil := range map[string]func(s *secret.Sealer) error{
		"chmod 600":             func(s *secret.Sealer) error { return os.Chmod(s.KeyFile, 0o640) },
		"belongs to user 65534": func(s *secret.Sealer) error { return os.Chown(s.KeyFile, 65534, 65534) },
		"has 5 bytes":           func(s *secret.Sealer) error { return os.WriteFile(s.KeyFile, []byte("short"), 0o600) },
		"too long for a key":    func(s *secret.Sealer) error { return os.WriteFile(s.KeyFile, make([]byte, 9999), 0o600) },
		"is a symbolic link":    func(s *secret.Sealer) error { return relink(s.KeyFile) },
		"is not a regular file": func(s *secret.Sealer) error { return os.Mkdir(s.KeyFile+".d", 0o700) },
		"credential volagent.key h": func(s *secret.Sealer) error {
			return os.WriteFile(filepath.Join(s.Credentials, secret.CredentialName), nil, 0o400)
		},
	} {
		s, made := newSealer(t)
		one := seal(t, s, "data", planted, nil)
		if err := spoil(s); err != nil {
			t.Fatal(err)
		}
		if words == "is not a regular file" {
			s.KeyFile += ".d"
		}
		_, err := s.Seal("data", refs{"key": {Literal: call.NewSecret("wh1sper")}}, one)
		if err == nil {
			t.Errorf("%s: sealed", words)
			continue
		}
		mustSay(t, "seal", err.Error(), `cannot seal secret "key" of volume "data": `, words)
		if strings.Contains(err.Error(), "wh1sper") || *made != 1 {
			t.Errorf("%s: %v, %d keys made", words, err, *made)
		}
		if !strings.HasPrefix(words, "credential") {
			mustSay(t, "open", opened(s, "data", one), words, "give the value again")
		} else if got := opened(s, "data", one); got != planted {
			t.Errorf("a bad credential beside the key file that sealed it: %q", got)
		}
	}
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	if _, err := (&secret.Sealer{}).Seal("data", refs{"key": {Literal: call.NewSecret("x")}}, nil); err == nil {
		t.Error("sealed with no key at all")
	}
}

func relink(path string) error {
	if err := os.Rename(path, path+".to"); err != nil {
		return err
	}
	return os.Symlink(path+".to", path)
}

// TestKeyCredential checks that the sealer prefers the credential to the key file. Open must still
// read values that were sealed with the key file, and the next Seal must use the credential.
func TestKeyCredential(t *testing.T) {
	s, made := newSealer(t)
	old := seal(t, s, "data", planted, nil)
	t.Setenv("CREDENTIALS_DIRECTORY", s.Credentials)
	s.Credentials = ""
	write(t, filepath.Join(os.Getenv("CREDENTIALS_DIRECTORY"), secret.CredentialName), strings.Repeat("k", 40))
	if got := opened(s, "data", old); got != planted {
		t.Errorf("what the key file sealed: %q", got)
	}
	kept, err := s.Seal("data", refs{"key": {Keep: true}}, old)
	if err != nil || kept["key"] == old["key"] || opened(s, "data", kept) != planted {
		t.Errorf("what is kept is not sealed with the credential now: %v, %v", kept, err)
	}
	if again := s.Same("data", refs{"key": {Keep: true}}, kept); again["key"] != (call.SecretRef{Keep: true}) {
		t.Errorf("what is kept, with the same key: %v", again)
	}
	if got := s.Equal("data", refs{"key": {Literal: call.NewSecret(planted)}}, old); got["key"] != old["key"] {
		t.Errorf("the same value sealed with another key: %v", got)
	}
	if got := s.Equal("data", refs{"key": {Literal: call.NewSecret("x")}}, old); got["key"] == old["key"] {
		t.Error("another value passes for the same")
	}
	now := seal(t, s, "data", planted, old)
	if now["key"] == old["key"] || opened(s, "data", now) != planted || seal(t, s, "data", planted, now)["key"] != now["key"] {
		t.Error("it is not sealed with the credential now")
	}
	if err := os.Remove(s.KeyFile); err != nil {
		t.Fatal(err)
	}
	if got := opened(s, "data", now); got != planted || *made != 1 {
		t.Errorf("without the key file: %q, %d keys made", got, *made)
	}
	mustSay(t, "what the key file sealed", opened(s, "data", old), "give the value again")
}

// TestKnown checks that Known returns the readable secrets, even if other secrets cannot be read.
func TestKnown(t *testing.T) {
	s, _ := newSealer(t)
	r := seal(t, s, "data", planted, nil)
	r["gone"] = call.SecretRef{File: "/none"}
	if got := (secret.Resolver{Sealer: s}).Known(volume.Volume{ID: "data", Secrets: r}); len(got) != 1 || got["key"].Reveal() != planted {
		t.Errorf("known: %v", got)
	}
}
