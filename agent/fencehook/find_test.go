package fencehook

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestMain gives the temporary directories of tests a mode that hooks need.
func TestMain(m *testing.M) {
	syscall.Umask(0o022)
	if dir := os.Getenv(dyingAgent); dir != "" {
		dieWithHook(dir)
	}
	os.Exit(m.Run())
}

// short are limits for tests.
var short = Limits{Off: 5e9, On: 5e9, Status: 5e9, Settle: 300e6, Poll: 10e6}

// newHooks returns hooks in a new directory.
func newHooks(t *testing.T, limits Limits) (*Hooks, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "fence.d")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	h := New(dir, limits)
	h.trust.uid = uint32(os.Getuid())
	return h, dir
}

// script writes an executable hook.
func script(t *testing.T, dir, name, body string) {
	t.Helper()
	write(t, filepath.Join(dir, name), "#!/bin/sh\n"+body+"\n", 0o755)
}

// TestFind checks which files are hooks, in which order, and why others are refused.
func TestFind(t *testing.T) {
	h, dir := newHooks(t, short)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if hooks, err := h.Find(); hooks != nil || err != nil {
		t.Errorf("without a directory: %v, %v", hooks, err)
	}

	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	elsewhere := t.TempDir()
	script(t, elsewhere, "fence_x", "")
	script(t, elsewhere, "target", "")
	link := func(target, name string) {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	file := func(name, content string, mode os.FileMode) { write(t, filepath.Join(dir, name), content, mode) }
	agent := "agent = " + elsewhere + "/fence_x\n"

	script(t, dir, "50-bmc", "")
	script(t, dir, "10_net", "")
	script(t, dir, "bmc~", "")
	script(t, dir, "bmc.dpkg-old", "")
	script(t, dir, ".hidden", "")
	script(t, dir, "-f", "")
	file("README", "", 0o644)
	file("groups", "", 0o775)
	file("others", "", 0o757)
	link(elsewhere+"/target", "linked")
	link("loop", "loop")
	link("/dev/null", "masked")
	link(elsewhere+"/gone", "dangling")
	file("a.agent", agent+"[h2]\n[h1]\n", 0o600)
	file("b.agent", agent+"[h1]\n", 0o644)
	file("c.agent", agent+"no\n", 0o600)
	file("d.agent", "agent = "+elsewhere+"/gone\n[h1]\n", 0o600)
	file("e.agent", agent+"password = file:"+elsewhere+"/target\n[h1]\n", 0o600)
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}

	hooks, err := h.Find()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"50-bmc": "", "10_net": "", "linked": "", "a.agent": "",
		"bmc~": "its name", "bmc.dpkg-old": "its name", "-f": "its name",
		"README": "is not executable (mode 0644)", "groups": "other users can write", "others": "other users can write",
		"loop": "too many symbolic links", "masked": "not a regular file", "dangling": "no such file",
		"b.agent": "other users can read", "c.agent": "line 2", "d.agent": "no such file", "e.agent": "other users can read",
	}
	names := make([]string, len(hooks))
	for i, hook := range hooks {
		names[i] = hook.Name
		reason, ok := want[hook.Name]
		if !ok || (hook.Refused == nil) != (reason == "") || hook.Refused != nil && !strings.Contains(hook.Refused.Error(), reason) {
			t.Errorf("hook %q is refused with %v, want %q", hook.Name, hook.Refused, reason)
		}
		if (hook.Kind == KindAgent) != strings.HasSuffix(hook.Name, ".agent") {
			t.Errorf("hook %q is of the kind %s", hook.Name, hook.Kind)
		}
		if hook.Name == "a.agent" && !slices.Equal(hook.Hosts, []string{"h1", "h2"}) {
			t.Errorf("hook %q serves %q", hook.Name, hook.Hosts)
		}
	}
	if len(hooks) != len(want) || !slices.IsSorted(names) {
		t.Errorf("found %q", names)
	}
}

// TestTrust checks that no other user than root can have changed a file that is used.
func TestTrust(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give files to other users")
	}
	root := t.TempDir()
	path := func(name string) string { return filepath.Join(root, name) }
	mkdir := func(name string, mode os.FileMode) {
		if err := os.Mkdir(path(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	give := func(name string) {
		if err := os.Lchown(path(name), 12345, -1); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, name string) {
		if err := os.Symlink(target, path(name)); err != nil {
			t.Fatal(err)
		}
	}

	mkdir("good", 0o755)
	script(t, path("good"), "hook", "")
	script(t, path("good"), "theirs", "")
	give("good/theirs")
	mkdir("group", 0o775)
	script(t, path("group"), "hook", "")
	mkdir("sticky", 0o777|os.ModeSticky)
	script(t, path("sticky"), "hook", "")
	mkdir("given", 0o755)
	script(t, path("given"), "hook", "")
	give("given")
	link("good/hook", "link")
	link("../good/hook", "good/link")
	link("good", "dirlink")
	link("good/theirs", "to-theirs")
	link("group/hook", "to-group")
	link("good/hook", "given-link")
	give("given-link")
	link("../good/hook", "group/hop")
	link("group/hop", "hops-through-group")

	for name, want := range map[string]string{
		"good/hook": "", "link": "", "good/link": "", "dirlink/hook": "", "dirlink/link": "", "sticky/hook": "", "sticky/../good/./hook": "",
		"good/theirs":        "belongs to the user with the id 12345",
		"to-theirs":          "belongs to the user with the id 12345",
		"given/hook":         "belongs to the user with the id 12345",
		"given-link":         "belongs to the user with the id 12345",
		"group/hook":         "other users can write to " + path("group"),
		"to-group":           "other users can write to " + path("group"),
		"hops-through-group": "other users can write to " + path("group"),
		"good":               "is not a regular file",
		"gone":               "no such file",
		"good/hook/x":        "not a directory",
	} {
		actual, err := trust{}.executable(path(name))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v, want %q", name, actual, err, want)
		}
		if err == nil && filepath.Base(actual) != "hook" {
			t.Errorf("%s leads to %s", name, actual)
		}
	}

	for name, want := range map[string]string{
		"good": "", "dirlink": "", "group": "other users can write", "sticky": "other users can write", "given": "belongs to", "good/hook": "not a directory",
	} {
		if actual, err := (trust{}).directory(path(name)); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("directory %s: %q, %v, want %q", name, actual, err, want)
		}
	}
	if _, err := (trust{}).executable("relative"); err == nil || !strings.Contains(err.Error(), "not an absolute path") {
		t.Errorf("a relative path: %v", err)
	}
}

// TestUntrustedDirectory checks that no hook of a directory is called that others can write to.
func TestUntrustedDirectory(t *testing.T) {
	h, dir := newHooks(t, short)
	script(t, dir, "bmc", "touch "+dir+"/called")
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}

	r := h.Off(t.Context(), Target{Host: "h1"})
	if r.Started || r.Proven || !strings.Contains(r.Reason, "other users can write to "+dir) {
		t.Errorf("got %+v", r)
	}
	if _, err := os.Stat(dir + "/called"); err == nil {
		t.Error("the hook was called")
	}
}
