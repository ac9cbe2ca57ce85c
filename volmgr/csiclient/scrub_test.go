package csiclient_test

import (
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/csiclient"
)

func secretsOf(pairs ...string) call.Secrets {
	all := call.Secrets{}
	for i := 0; i < len(pairs); i += 2 {
		all[pairs[i]] = call.NewSecret(pairs[i+1])
	}
	return all
}

// TestScrubRule checks each case of the masking rule in docs/security.md.
func TestScrubRule(t *testing.T) {
	for name, tt := range map[string]struct {
		secrets    call.Secrets
		text, want string
	}{
		"names of a file system": {secretsOf("storage", "file", "name", "jfs1", "metaurl", "sqlite3:///x.db"), "Data use file:///var/jfs1/, meta sqlite3:///x.db", "Data use file:///var/jfs1/, meta ***"},
		"all keys of names":      {secretsOf("Name", "aaaaaaaaaa", "REGION", "bbbbbbbbbb", "bucket", "cccccccccc", "endpoint", "https://dddddd"), "aaaaaaaaaa bbbbbbbbbb cccccccccc https://dddddd", "aaaaaaaaaa bbbbbbbbbb cccccccccc https://dddddd"},
		"a name that is secret":  {secretsOf("name", "hunter2hunter2", "password", "hunter2hunter2"), "it is hunter2hunter2", "it is ***"},
		"a password in a name":   {secretsOf("endpoint", "https://me:hunter2hunter2@host/x"), "dial https://me:hunter2hunter2@host/x", "dial https://me:***@host/x"},
		"a long value in a word": {secretsOf("p", "12345678"), "x12345678y", "x***y"},
		"a short value in words": {secretsOf("p", "123456"), "0123456 1234567 a123456 123456_", "0123456 1234567 a123456 123456_"},
		"a short value":          {secretsOf("p", "123456"), "123456 p=123456, '123456' -123456- 123456", "*** p=***, '***' -***- ***"},
		"a short value, encoded": {secretsOf("p", "123456"), "basic MTIzNDU2, hex 313233343536", "basic ***, hex ***"},
		"punctuation":            {secretsOf("p", "!a!"), "x!a!y", "x***y"},
		"empty":                  {secretsOf("region", "", "p", ""), "all of it", "all of it"},
		"overlapping":            {secretsOf("p", "abcdabcdabcd"), "abcdabcdabcdabcd", "***"},
		"two that overlap":       {secretsOf("p", "aaaabbbb", "q", "bbbbcccc"), "x aaaabbbbcccc x", "x *** x"},
		"spelled by a mask":      {secretsOf("p", "a***b12345", "q", "longer than that"), "alonger than thatb12345", "***"},
		"beyond ASCII":           {secretsOf("p", "ß", "q", "geheimes"), "Straße ß", "Straße ***"},
	} {
		var s csiclient.Scrubber
		s.Add(tt.secrets)
		if got := s.Scrub(tt.text); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}

	var s csiclient.Scrubber
	s.Add(secretsOf("Prefix", "pvc-prefix", "p", "hunter2hunter2"))
	s.Unmask("prefix")
	if got := s.Scrub("no pvc-prefix/x: hunter2hunter2"); got != "no pvc-prefix/x: ***" {
		t.Errorf("with a key of the plugin's file: %q", got)
	}
	if s.Unmask(); s.Scrub("pvc-prefix") != "***" {
		t.Error("a key that the file names no longer is shown")
	}
}

// FuzzScrub checks that Scrub masks every secret of 8 bytes or more in all its forms. Scrub must
// not change a text without secrets.
func FuzzScrub(f *testing.F) {
	f.Add("hunter2hunter2", "short", "it is %s, and short %s", "x")
	f.Add("********", "*", "%s****%s", "***")
	f.Add("a***b12345", "jfs1", "a%sb12345", "longer than that")
	f.Add("line one\nline two\n", " ", "%s", "\x00\xff")
	f.Fuzz(func(t *testing.T, long, short, text, other string) {
		if len(long)+len(other)+len(short) > 1<<8 || len(text) > 1<<8 {
			t.Skip("too large to be quick")
		}
		var s csiclient.Scrubber
		s.Add(secretsOf("long", long, "short", short, "name", "volagent-name"))
		s.Add(secretsOf("other", other))
		for _, form := range []string{long, base64.StdEncoding.EncodeToString([]byte(long)), hex.EncodeToString([]byte(long)), url.QueryEscape(long), other} {
			got := s.Scrub(strings.ReplaceAll(text, "%s", form) + form)
			for _, secret := range []string{long, other} {
				if len(secret) >= 8 && strings.Contains(got, secret) {
					t.Errorf("%q is in %q", secret, got)
				}
			}
		}
		plain := "mount: volagent-name"
		if len(long) >= 8 && len(other) >= 8 && !strings.Contains(plain, long) && !strings.Contains(plain, other) && len(short) > len(plain) {
			if got := s.Scrub(plain); got != plain {
				t.Errorf("%q became %q", plain, got)
			}
		}
	})
}
