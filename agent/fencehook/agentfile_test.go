package fencehook

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestAgentFile checks the input that a fence agent gets for each host.
func TestAgentFile(t *testing.T) {
	trusted := trust{uid: uint32(os.Getuid())}
	secret := filepath.Join(t.TempDir(), "bmc")
	write(t, secret, "pass=word 1 \n", 0o600)
	f, err := parseAgentFile(`# the BMCs of rack 4
agent = /usr/sbin/fence_ipmilan
lanplus=1
username = volagent
power-timeout = 10
password = file:` + secret + `

[ db1 ]
ip = 192.0.2.11
; this BMC is slow
power_timeout = 30
[db2]
ip=192.0.2.12
password = "quoted"
nodename = other
`)
	if err != nil {
		t.Fatal(err)
	}
	if got := f.hostNames(); !slices.Equal(got, []string{"db1", "db2"}) || f.program != "/usr/sbin/fence_ipmilan" || !slices.Equal(f.secretFiles(), []string{secret}) {
		t.Errorf("the file means %q, %+v", got, f)
	}

	for host, want := range map[string]string{
		"db1": "lanplus=1\nusername=volagent\npassword=\"pass=word 1 \"\nip=192.0.2.11\npower_timeout=30\nnodename=db1\naction=status\n",
		"db2": "lanplus=1\nusername=volagent\npower-timeout=10\nip=192.0.2.12\npassword=\"\"quoted\"\"\nnodename=other\naction=status\n",
	} {
		got, secrets, err := f.input(trusted, ActionStatus, host)
		if err != nil || got != want {
			t.Errorf("%s gets %q, %v, want %q", host, got, err, want)
		}
		if len(secrets) != 1 || !strings.Contains(got, secrets[0]) {
			t.Errorf("%s has the secrets %q", host, secrets)
		}
	}
}

// TestAgentFileMistakes checks the messages about mistakes in a file. None of them may contain a value.
func TestAgentFileMistakes(t *testing.T) {
	const agent = "agent = /usr/sbin/fence_x\n"
	for text, want := range map[string]string{
		"":                                  `it has no line "agent = `,
		"[h1]\nip = S3CRET":                 `it has no line "agent = `,
		agent + "ip = S3CRET\n":             "it has no section",
		agent + "S3CRET\n[h1]":              `line 2: it has no "="`,
		agent + "a b = S3CRET\n[h1]":        "line 2: the name of an option",
		agent + "= S3CRET\n[h1]":            "line 2: the name of an option",
		agent + "action = S3CRET\n[h1]":     "line 2: option action is not allowed",
		agent + "option = S3CRET\n[h1]":     "line 2: option option is not allowed",
		agent + "x = S3CRET\x00\n[h1]":      "line 2: the value of option x contains a zero byte",
		agent + "x = file:S3CRET\n[h1]":     "line 2: option x needs an absolute path",
		agent + "x = S3CRET\nx = 2\n[h1]":   "line 3: option x is given twice",
		agent + "x-y = S3CRET\nx_y=2\n[h1]": "line 3: option x_y is given twice",
		agent + agent + "[h1]":              "line 2: option agent is given twice",
		agent + "[h1]\n" + agent:            "line 3: option agent must be before the first section",
		"agent = S3CRET\n[h1]":              "line 1: option agent needs the absolute path",
		agent + "[h1\n":                     "line 2: a section must have the form [HOST]",
		agent + "[]\n":                      "line 2: the host has no name",
		agent + "[-h]\n":                    "begins with a hyphen",
		agent + "[h 1]\n":                   "contains a space",
		agent + "[h1]\n[h1]\n":              `line 3: host "h1" has two sections`,
	} {
		_, err := parseAgentFile(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "S3CRET") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestSecretFile checks which files may contain the value of an option.
func TestSecretFile(t *testing.T) {
	trusted := trust{uid: uint32(os.Getuid())}
	file := filepath.Join(t.TempDir(), "bmc")
	for _, c := range []struct {
		content string
		mode    os.FileMode
		want    string // of the value, or in the error
	}{
		{"S3CRET", 0o600, ""},
		{"S3CRET\r\n", 0o400, ""},
		{"S3CRET", 0o640, "other users can read"},
		{"S3CRET", 0o604, "other users can read"},
		{"S3CRET", 0o620, "other users can write"},
		{"S3CRET\naction=on\n", 0o600, "only one line"},
		{"\n", 0o600, "is empty"},
		{strings.Repeat("S3CRET", 1000), 0o600, "more than 4096 bytes"},
	} {
		write(t, file, c.content, c.mode)
		got, err := readSecret(trusted, file)
		switch {
		case c.want == "":
			if got != "S3CRET" || err != nil {
				t.Errorf("%q with mode %o: %q, %v", c.content, c.mode, got, err)
			}
		case err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "S3CRET"):
			t.Errorf("%.10q with mode %o: %v, want %q", c.content, c.mode, err, c.want)
		}
	}
}

// write writes a file that has exactly the given mode.
func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}
