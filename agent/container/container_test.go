package container

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// program makes a script with the name of a runtime's program, and puts it first in the PATH.
func program(t *testing.T, name, script string) Runtime {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return New(name)
}

// TestBounded checks commands that never end or never stop writing. Each command must end when its
// context ends, and the kept output must stay within its limit.
func TestBounded(t *testing.T) {
	r := program(t, "docker", `case $1 in
hang) trap '' TERM; exec sleep 1000;;
talk) exec yes;;
much) head -c 5000000 /dev/zero;;
esac`)
	began := time.Now()
	_, err := r.run(t.Context(), command{args: []string{"hang"}, limit: 200 * time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), "docker hang did not end within 200ms") || !strings.Contains(err.Error(), "systemctl status docker") {
		t.Errorf("a hang: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := r.run(ctx, command{args: []string{"talk"}, limit: time.Minute}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the caller's end: %v", err)
	}
	if took := time.Since(began); took > 3*patience {
		t.Errorf("both took %s", took)
	}
	if _, err := r.run(t.Context(), command{args: []string{"much"}, limit: time.Minute}); err == nil || !strings.Contains(err.Error(), "exceeds") {
		t.Errorf("much: %v", err)
	}
}

// TestWords checks that each error message of a runtime becomes an error of one line that names the
// problem.
func TestWords(t *testing.T) {
	for said, want := range map[string]struct {
		words string
		is    error
	}{
		"Error response from daemon: No such container: x\n":                                                        {"no such container: No such container: x", ErrNotFound},
		"Error: inspecting object: no such container x\n":                                                           {"no such container: inspecting object: no such container x", ErrNotFound},
		"Error: no container with name or ID \"x\" found: no such container":                                        {"", ErrNotFound},
		"docker: Error response from daemon: No such image: a:1.\n\nRun 'docker run --help' for more information\n": {"no such image: No such image: a:1.", ErrNoImage},
		"Error: a:1: image not known\n":                                                                             {"no such image: a:1: image not known", ErrNoImage},
		"Cannot connect to the Docker daemon at unix:///s. Is the docker daemon running?\n":                         {"the daemon of docker cannot be reached (systemctl start docker): Cannot", nil},
		"time=now level=warning\nError: something else\n":                                                           {"docker run failed: something else", nil},
		"":                         {"docker run failed: exit", nil},
		strings.Repeat("x", 10000): {"docker run failed: xxx", nil},
	} {
		err := New("docker").failed("run", said, errors.New("exit"))
		if !strings.HasPrefix(err.Error(), want.words) || want.is != nil && !errors.Is(err, want.is) || len(err.Error()) > 2*maxReason || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.60q became %q", said, err)
		}
	}
}

// TestVariables checks how variables reach the container. No secret may become an argument, and no
// variable may change the behavior of the runtime's command itself.
func TestVariables(t *testing.T) {
	// The agent's own environment contains the same secret, so the command may pass it on.
	t.Setenv("HTTPS_PROXY", "http://user:s3cret@proxy")
	args, env, err := variables([]Var{{"TOKEN", "a\nb", true}, {"PATH", "/x", false}, {"GOOGLE_KEY", "k", true}, {"A*", "star", false},
		{"HTTPS_PROXY", "http://user:s3cret@proxy", false}, {"NO_PROXY", "x", false}})
	if want := []string{"--env", "TOKEN", "--env", "PATH=/x", "--env", "GOOGLE_KEY", "--env", "A*=star", "--env", "HTTPS_PROXY", "--env", "NO_PROXY=x"}; err != nil || !slices.Equal(args, want) {
		t.Errorf("the arguments are %q, %v", args, err)
	}
	if want := []string{"TOKEN=a\nb", "GOOGLE_KEY=k"}; !slices.Equal(env, want) {
		t.Errorf("the environment is %q", env)
	}
	for _, name := range []string{"PATH", "DOCKER_HOST", "CONTAINERS_CONF", "LD_PRELOAD", "NOTIFY_SOCKET", "GODEBUG", "T*", "https_proxy"} {
		if _, _, err := variables([]Var{{name, "s3cret", true}}); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("a secret %s: %v", name, err)
		}
	}
}

// TestEnvironment checks that a command gets the variables that it needs. It must get neither the
// agent's own variables nor the notify socket of systemd.
func TestEnvironment(t *testing.T) {
	for _, name := range []string{"NOTIFY_SOCKET", "VOLAGENT_SECRET", "LD_PRELOAD", "LISTEN_FDS", "DOCKER_HOST", "CONTAINERS_CONF", "https_proxy"} {
		t.Setenv(name, "v")
	}
	r := program(t, "podman", "env")
	t.Setenv("HOME", "")
	out, err := r.run(t.Context(), command{args: []string{"info"}, env: []string{"MORE=1"}, limit: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out, "\n")
	for _, want := range []string{"DOCKER_HOST=v", "CONTAINERS_CONF=v", "https_proxy=v", "HOME=/root", "MORE=1"} {
		if !slices.Contains(lines, want) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
	for _, bad := range []string{"NOTIFY_SOCKET", "VOLAGENT_SECRET", "LD_PRELOAD", "LISTEN_FDS"} {
		if strings.Contains(out, bad) {
			t.Errorf("%s in\n%s", bad, out)
		}
	}
}

// TestLogs checks that Logs drops repeated lines and reads incomplete lines again. The result must
// not depend on how the output is split into writes.
func TestLogs(t *testing.T) {
	const said = "2026-01-01T00:00:01Z old\n2026-01-01T00:00:02.5Z one\nError: the runtime's own\n2026-01-01T02:00:03+02:00 \n2026-01-01T00:00:04Z two words\n2026-01-01T00:00:05Z cut"
	since := time.Date(2026, 1, 1, 0, 0, 1, 0, time.UTC)
	for size := 1; size < len(said); size++ {
		var out strings.Builder
		s := &stripper{to: &out, since: since, last: since}
		for piece := range slices.Chunk([]byte(said), size) {
			if _, err := s.Write(piece); err != nil {
				t.Fatal(err)
			}
		}
		if s.last.Second() != 4 || s.words != "Error: the runtime's own\n" {
			t.Fatalf("in pieces of %d: until %s, words %q", size, s.last, s.words)
		}
		if err := s.end(); err != nil || s.last.Second() != 5 || out.String() != "one\n\ntwo words\ncut\n" {
			t.Fatalf("in pieces of %d: until %s, %q", size, s.last, out.String())
		}
	}
}

// TestExit checks the text with which Exit describes the end of a container.
func TestExit(t *testing.T) {
	for text, want := range map[string]string{
		`{"Status":"exited","ExitCode":3}`:                      "exited with status 3",
		`{"Status":"exited","ExitCode":137}`:                    "killed by signal 9 (SIGKILL)",
		`{"Status":"exited","ExitCode":137,"OOMKilled":true}`:   "killed because it ran out of memory (OOM)",
		`{"Status":"exited","ExitCode":200}`:                    "exited with status 200",
		`{"Status":"created","ExitCode":127,"Error":"no file"}`: "did not run: no file",
	} {
		r := program(t, "podman", "echo '[{\"Id\":\"x\",\"State\":"+text+"}]'")
		c, err := r.Inspect(t.Context(), "x")
		if err != nil || c.Alive || c.Exit() != want {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
	}
	if _, err := program(t, "podman", "echo '[]'").Inspect(t.Context(), "x"); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("an answer without a container: %v", err)
	}
}

// TestRunArguments checks that Run accepts paths that contain commas and colons, and that Run pulls
// no image.
func TestRunArguments(t *testing.T) {
	file := filepath.Join(t.TempDir(), "args")
	r := program(t, "docker", "for a; do echo \"$a\" >> "+file+"; done; echo 0123456789abcdef")
	id, err := r.Run(t.Context(), Spec{Name: "n", Image: "img", Args: []string{"--x", "y z"}, Labels: map[string]string{"b": "2", "a": "1"},
		Binds: []Bind{{Path: `/a,"b`, Shared: true}, {Path: "/dev"}}, Volumes: []string{"/s:/t:ro"}})
	if err != nil || id != "0123456789abcdef" {
		t.Fatalf("%q, %v", id, err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSpace(string(raw)), "\n")
	if tail := got[len(got)-3:]; !slices.Equal(tail, []string{"img", "--x", "y z"}) {
		t.Errorf("the image and its arguments: %q", tail)
	}
	for _, want := range []string{`type=bind,"src=/a,""b","dst=/a,""b",bind-propagation=rshared`, "type=bind,src=/dev,dst=/dev", "/s:/t:ro", "a=1", "b=2", "--privileged", "never"} {
		if !slices.Contains(got, want) {
			text, err := json.Marshal(got)
			t.Errorf("no %s in %s, %v", want, text, err)
		}
	}
	if _, err := program(t, "docker", "echo nonsense").Run(t.Context(), Spec{}); err == nil {
		t.Error("what is no id passes for one")
	}
}

// TestEntrypoint checks that the entrypoint of a container comes before the image, and its arguments
// after it.
func TestEntrypoint(t *testing.T) {
	r := program(t, "docker", `case $1 in run) echo "$@" >&2; exit 1;; esac`)
	_, err := r.Run(t.Context(), Spec{Name: "n", Image: "img", Entrypoint: "/e", Args: []string{"a"}})
	if err == nil || !strings.Contains(err.Error(), "--entrypoint /e img a") {
		t.Errorf("with an entrypoint: %v", err)
	}
	_, err = r.Run(t.Context(), Spec{Name: "n", Image: "img", Args: []string{"a"}})
	if err == nil || strings.Contains(err.Error(), "entrypoint") {
		t.Errorf("without an entrypoint: %v", err)
	}
}
