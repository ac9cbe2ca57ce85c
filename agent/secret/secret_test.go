package secret_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/agent/secret"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// planted is a secret value that must not appear in any error.
const planted = "hunter2-planted"

func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestResolve(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "cred"), planted+"\n")
	r := secret.Resolver{Credentials: dir, Getenv: func(name string) (string, bool) { return planted, name == "KEY" }}
	for name, tt := range map[string]struct {
		ref  call.SecretRef
		want string
	}{
		"a file":                       {call.SecretRef{File: write(t, filepath.Join(dir, "plain"), planted)}, planted},
		"its last newline is not part": {call.SecretRef{File: write(t, filepath.Join(dir, "line"), planted+"\n")}, planted},
		"any other newline is":         {call.SecretRef{File: write(t, filepath.Join(dir, "lines"), "\na\nb\n\n")}, "\na\nb\n"},
		"an empty file":                {call.SecretRef{File: write(t, filepath.Join(dir, "empty"), "")}, ""},
		"the largest file":             {call.SecretRef{File: write(t, filepath.Join(dir, "large"), strings.Repeat("x", 64<<10))}, strings.Repeat("x", 64<<10)},
		"a credential":                 {call.SecretRef{Credential: "cred"}, planted},
		"the environment":              {call.SecretRef{Env: "KEY"}, planted},
		"a value to be sealed":         {call.SecretRef{Literal: call.NewSecret(planted)}, planted},
	} {
		got, err := r.Of(volume.Volume{ID: "data", Secrets: map[string]call.SecretRef{"k": tt.ref}})
		if err != nil || len(got) != 1 || got["k"].Reveal() != tt.want {
			t.Errorf("%s: %q, %v", name, got["k"].Reveal(), err)
		}
	}
	if got, err := r.Of(volume.Volume{}); got != nil || err != nil {
		t.Errorf("no references: %v, %v", got, err)
	}
}

// TestNotCached checks that the resolver reads the value anew on each call.
func TestNotCached(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "key"), "one")
	for _, want := range []string{"one", "two"} {
		write(t, path, want)
		if got, err := (secret.Resolver{}).One(call.SecretRef{File: path}); err != nil || got.Reveal() != want {
			t.Errorf("%q, %v, want %q", got.Reveal(), err, want)
		}
	}
}

// TestDefaults checks that the zero Resolver uses the environment and the credentials of the
// process.
func TestDefaults(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "cred"), "from systemd")
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	t.Setenv("SECRET_TEST_KEY", "from the environment")
	for want, ref := range map[string]call.SecretRef{"from systemd": {Credential: "cred"}, "from the environment": {Env: "SECRET_TEST_KEY"}} {
		if got, err := (secret.Resolver{}).One(ref); err != nil || got.Reveal() != want {
			t.Errorf("%q, %v, want %q", got.Reveal(), err, want)
		}
	}
}

func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "cred"), planted)
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	given := secret.Resolver{Credentials: filepath.Join(dir, "sub"), Getenv: func(string) (string, bool) { return planted, false }}
	for _, tt := range []struct {
		r     secret.Resolver
		ref   call.SecretRef
		words string
	}{
		{given, call.SecretRef{}, "the reference names no source"},
		{given, call.SecretRef{File: "key"}, `file "key" is not an absolute path`},
		{given, call.SecretRef{File: filepath.Join(dir, "none")}, "no such file"},
		{given, call.SecretRef{File: dir}, "not a regular file"},
		{given, call.SecretRef{File: fifo}, "not a regular file"},
		{given, call.SecretRef{File: "/proc/kmsg"}, "not a regular file"},
		{given, call.SecretRef{File: "/dev/zero"}, "not a regular file"},
		{given, call.SecretRef{File: write(t, filepath.Join(dir, "huge"), planted+strings.Repeat("x", 64<<10))}, "more than 65536 bytes"},
		{given, call.SecretRef{Credential: "../cred"}, "is not a name"},
		{given, call.SecretRef{Credential: ".."}, "is not a name"},
		{given, call.SecretRef{Credential: "/etc/passwd"}, "is not a name"},
		{given, call.SecretRef{Credential: "none"}, "no such file"},
		{secret.Resolver{}, call.SecretRef{Credential: "cred"}, "systemd gave the agent no credentials"},
		{given, call.SecretRef{Env: "KEY"}, "environment has no KEY"},
		{given, call.SecretRef{Sealed: "v1.x.y"}, "cannot open sealed values"},
	} {
		got, err := tt.r.Of(volume.Volume{ID: "data", Secrets: map[string]call.SecretRef{"password": tt.ref}})
		if err == nil || !strings.Contains(err.Error(), tt.words) || !strings.Contains(err.Error(), `cannot read secret "password" of volume "data": `) || got != nil {
			t.Errorf("%+v: %v, want %q", tt.ref, err, tt.words)
		}
		if err != nil && strings.Contains(err.Error(), planted) {
			t.Errorf("%+v: the error repeats the value: %v", tt.ref, err)
		}
	}
}
