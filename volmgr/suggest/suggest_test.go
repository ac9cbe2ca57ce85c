package suggest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/suggest"
)

// hostile contains values that a shell would interpret if they were not quoted.
var hostile = []string{
	"$(touch owned)", "`touch owned`", ";touch owned;", "x;touch${IFS}owned;#.service", "|touch owned", "&touch owned&",
	">owned", "a\ntouch owned\n", "'; touch owned; '", `\'; touch owned; '`, "\"; touch owned; \"", "!touch", "*", "?", "[a-z]",
	"~", "~root", "=ls", "{a,b}", "#", "", " ", "a b", "\x1b]0;x\x07", "a'\x1b'; touch owned; '", "a\u202eb", "a\u2028b", "\xff\xfe'; touch owned; '",
	"-rf", "--help", "-", "--", "-x y", "it's", "a\\b", "$HOME", "%s", "é",
}

// TestCommandInShell runs each command in real shells, with a program that prints its arguments.
// Each value must arrive as one argument, and the shell must run nothing else.
func TestCommandInShell(t *testing.T) {
	for _, shell := range []string{"bash", "dash", "zsh", "sh"} {
		path, err := exec.LookPath(shell)
		if err != nil {
			continue
		}
		t.Run(shell, func(t *testing.T) {
			for _, value := range hostile {
				runIn(t, path, value)
			}
		})
	}
}

func runIn(t *testing.T, shell, value string) {
	dir := t.TempDir()
	script := "#!/bin/sh\nfor a in \"$@\"; do printf '%s\\0' \"$a\"; done\n"
	if err := os.WriteFile(filepath.Join(dir, "volctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	command := suggest.Command("volctl volume detach %s %s --without-plugin=%s", value, "web", value)
	cmd := exec.Command(shell, "-c", command)
	cmd.Dir, cmd.Env = dir, []string{"PATH=" + dir + ":/usr/bin:/bin", "HOME=/root"}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q as %s: %v", value, command, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Fatalf("%q as %s did something else: %v, %v", value, command, entries, err)
	}
	got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	want := []string{"volume", "detach", value, "web", "--without-plugin=" + value}
	if strings.HasPrefix(value, "-") {
		want = []string{"volume", "detach", "--without-plugin=" + value, "--", value, "web"}
	}
	escaped := strings.Contains(command, "$'")
	if escaped && !strings.HasSuffix(shell, "bash") && !strings.HasSuffix(shell, "zsh") {
		if len(got) != len(want) {
			t.Errorf("%q as %s: %d arguments %q, want %d", value, command, len(got), got, len(want))
		}
		return
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q as %s:\narguments %q\nwant      %q", value, command, got, want)
	}
}

// TestCommand checks the text of commands as an operator reads it.
func TestCommand(t *testing.T) {
	for want, got := range map[string]string{
		"volctl volume create data --plugin=p '--param=a=b c'": suggest.Command("volctl volume create %s %s", "data", suggest.Options{"--plugin=p", "--param=a=b c"}),
		"volctl volume create --plugin=p -- -x":                suggest.Command("volctl volume create %s %s", "-x", suggest.Options{"--plugin=p"}),
		"volctl volume detach data web.service":                suggest.Command("volctl volume detach %s %s", "data", "web.service"),
		"volctl volume detach data 'first one'":                suggest.Command("volctl volume detach %s %s", "data", "first one"),
		`volctl volume detach data 'it'\''s; $HOME'`:           suggest.Command("volctl volume detach %s %s", "data", "it's; $HOME"),
		"volctl volume detach data '*'":                        suggest.Command("volctl volume detach %s %s", "data", "*"),
		"volctl volume delete -y -- -x":                        suggest.Command("volctl volume delete %s -y", "-x"),
		"volctl volume delete x -y":                            suggest.Command("volctl volume delete %s -y", "x"),
		"volctl plugin status -o wide -- -x FILE":              suggest.Command("volctl plugin status %s FILE -o wide", "-x"),
		"volctl volume snapshot list --plugin -x":              suggest.Command("volctl volume snapshot list --plugin %s", "-x"),
		"volctl volume modify data a=1 'b=x y'":                suggest.Command("volctl volume modify %s %s", "data", []string{"a=1", "b=x y"}),
		"volctl volume modify -- data -a=1":                    suggest.Command("volctl volume modify %s %s", "data", []string{"-a=1"}),
		"volctl volume snapshot delete p s -y":                 suggest.Command("volctl volume snapshot delete %s %s %s -y", "p", "s", []string(nil)),
		"kill 4711":                                            suggest.Command("kill %d", 4711),
		"umount $'/a\\012b'":                                   suggest.Command("umount %s", "/a\nb"),
		"systemctl stop 'a\\x2db.service'":                     suggest.Command("systemctl stop %s", `a\x2db.service`),
		"systemctl stop -- -.mount":                            suggest.Command("systemctl stop %s", "-.mount"),
	} {
		if got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

// TestUnits checks that no command contains a unit name that systemd does not allow, or a unit of
// another service manager.
func TestUnits(t *testing.T) {
	for _, name := range []string{
		"", "web", ".service", "@.service", "x;touch p;#.service", "a b.service", "a/b.service", "é.service", "a.service\n", "x.exe",
		strings.Repeat("a", 248) + ".service",
	} {
		if got := suggest.Command("systemctl stop %s", name); got != "" {
			t.Errorf("%q: %s", name, got)
		}
		if got := suggest.Stop(name, 7); got != "kill 7" {
			t.Errorf("%q: %s", name, got)
		}
	}
	for cgroups, want := range map[string]string{
		"0::/system.slice/web.service\n":                                            "systemctl stop web.service",
		"0::/system.slice/web.service/worker\n":                                     "systemctl stop web.service",
		"0::/system.slice/system-getty.slice/getty@tty1.service":                    "systemctl stop getty@tty1.service",
		"3:cpu:/x\n1:name=systemd:/system.slice/web.service\n0::/\n":                "systemctl stop web.service",
		"0::/system.slice/web.service/postgresql.service\n":                         "systemctl stop web.service",
		"0::/system.slice/x;touch${IFS}p;#.service\n":                               "kill 7",
		"0::/system.slice/web.service/x;touch${IFS}p;#.service\n":                   "systemctl stop web.service",
		"0::/user.slice/user-1000.slice/user@1000.service/app.slice/sshd.service\n": "kill 7",
		"0::/user.slice/user-1000.slice/session-3.scope\n":                          "kill 7",
		"0::/system.slice/docker-0123.scope/system.slice/sshd.service\n":            "kill 7",
		"0::/machine.slice/machine-x.scope/payload/system.slice/sshd.service\n":     "kill 7",
		"0::/../../system.slice/web.service\n":                                      "kill 7",
		"0::/sshd.service/x\n5:name=other:/system.slice/other.service\n":            "systemctl stop sshd.service",
		"0::/a:b/sshd.service\n":                                                    "kill 7",
		"0::/docker/sshd.service\n":                                                 "kill 7",
		"garbage":                                                                   "kill 7",
		"":                                                                          "kill 7",
	} {
		if got := suggest.Stop(suggest.UnitOf(cgroups), 7); got != want {
			t.Errorf("%s%s\nwant %s", cgroups, got, want)
		}
	}
}
