package containers_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// TestImportDocker imports a volume of docker's local driver. A container has written it, and a
// container of the new volume must read it.
func TestImportDocker(t *testing.T) {
	t.Parallel()
	s := newServed(t, harness.SharedBox(t, "docker"))
	old, data, a := s.unique("old"), s.unique("data"), s.unique("a")
	s.box.Must(t, "volume", "create", old)
	s.box.Must(t, "run", "-d", "--name", a, "--network", "none", "-v", old+":/data", harness.ShellImage,
		"echo hello > /data/f; /bin/busybox chown 12:34 /data/f; /bin/busybox chmod 4711 /data/f; /bin/busybox ln -s f /data/l; /bin/busybox sleep 1000")
	t.Cleanup(func() { _, _ = s.box.Run("rm", "-f", a) })
	path := s.box.Must(t, "volume", "inspect", "--format", "{{.Mountpoint}}", old)
	s.Await("the container to write", func() bool {
		_, err := os.Lstat(filepath.Join(path, "l"))
		return err == nil
	})

	importing := []string{"volume", "import-docker", old, "--id", data, "--plugin", "local"}
	if r := s.importDocker(importing...); r.Code != 4 || !strings.Contains(r.Err, `"`+a+`" (running)`) || !strings.Contains(r.Err, "docker stop "+a) {
		t.Fatalf("while a container writes: %+v", r)
	}
	s.box.Must(t, "stop", "-t", "0", a)
	r := s.importDocker(importing...)
	if r.Code != 0 || !strings.Contains(r.Out, "2 files") || !strings.Contains(r.Out, `still use the docker volume: "`+a+`"`) {
		t.Fatalf("the import: %+v", r)
	}
	s.clean()
	if r := s.importDocker("volume", "import-docker", old, "--into", data); r.Code != 4 || !strings.Contains(r.Err, "the volume is not empty") {
		t.Errorf("a second import: %+v", r)
	}

	s.box.Must(t, "rm", "-f", a)
	if out, err := s.create(data); err != nil {
		t.Fatal(out)
	}
	s.run(a, data+":/data")
	if got := s.sh(a, "/bin/busybox stat -c '%a %u %g' /data/f; cat /data/l"); got != "4711 12 34\nhello" {
		t.Errorf("the container reads %q", got)
	}
	s.box.Must(t, "rm", "-f", a)
	s.clean()
	s.box.Must(t, "volume", "rm", data, old)
	s.Volctl("volume", "delete", data, "-y")
}

// importDocker runs volctl with the docker daemon of the test.
func (s served) importDocker(args ...string) harness.Result {
	s.T.Helper()
	with := *s.Host
	with.Env = append(slices.Clone(s.Env), s.box.Env...)
	if s.Env == nil {
		with.Env = append(os.Environ(), s.box.Env...)
	}
	return with.Try(args...)
}
