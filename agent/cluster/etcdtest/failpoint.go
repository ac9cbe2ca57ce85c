package etcdtest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// FailpointBinary builds the etcd of Binary with its failpoints, which tests can set while a member runs,
// and returns the path of the program. The build takes minutes if the build cache does not have it.
func FailpointBinary(t testing.TB) string {
	t.Helper()
	program, err := buildFailpoints(t.TempDir())
	if err != nil {
		t.Fatalf("cannot build etcd with failpoints: %v", err)
	}
	return program
}

// buildFailpoints builds etcd below a directory. The module of the server comes from the module cache.
// The program gofail turns the comments that name failpoints into code, in a copy of the module.
func buildFailpoints(dir string) (program string, err error) {
	scripts, err := scriptsDir()
	if err != nil {
		return "", err
	}
	const server = "go.etcd.io/etcd/server/v3"
	from, err := goCommand(scripts, "list", "-modfile=etcd.mod", "-m", "-f", "{{.Dir}}", server)
	if err != nil {
		return "", err
	}
	module := filepath.Join(dir, "server")
	if err := os.CopyFS(module, os.DirFS(from)); err != nil {
		return "", err
	}
	folders, err := withFailpoints(module)
	if err != nil {
		return "", err
	}
	if _, err := goCommand(scripts, append([]string{"tool", "-modfile=gofail.mod", "go.etcd.io/gofail", "enable"}, folders...)...); err != nil {
		return "", err
	}

	for _, end := range []string{".mod", ".sum"} {
		raw, err := os.ReadFile(filepath.Join(scripts, "etcd"+end))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, "etcd"+end), raw, 0o600); err != nil {
			return "", err
		}
	}
	version, err := goCommand(scripts, "list", "-modfile=gofail.mod", "-m", "-f", "{{.Version}}", "go.etcd.io/gofail")
	if err != nil {
		return "", err
	}
	modfile := filepath.Join(dir, "etcd.mod")
	if _, err := goCommand(scripts, "mod", "edit", "-replace="+server+"="+module, "-require=go.etcd.io/gofail@"+version, modfile); err != nil {
		return "", err
	}
	program = filepath.Join(dir, "etcd")
	_, err = goCommand(scripts, "build", "-modfile="+modfile, "-mod=mod", "-trimpath", "-o", program, server)
	return program, err
}

// withFailpoints returns the folders of a module that have failpoints.
func withFailpoints(module string) (folders []string, err error) {
	err = filepath.WalkDir(module, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		raw, err := os.ReadFile(path)
		if bytes.Contains(raw, []byte("gofail: var")) && !slices.Contains(folders, filepath.Dir(path)) {
			folders = append(folders, filepath.Dir(path))
		}
		return err
	})
	if err == nil && len(folders) == 0 {
		err = fmt.Errorf("no failpoint in %s", module)
	}
	return folders, err
}

// goCommand runs a go command in a folder, and returns its output.
func goCommand(dir string, args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("go %s: %w\n%s", args[0], err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}
