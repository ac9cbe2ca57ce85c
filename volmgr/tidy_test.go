package volmgr_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/mount"
)

// TestTidy checks that Tidy removes empty files and directories. All other files and directories
// must remain, and the error must name them.
func TestTidy(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{
		"p/staging/gone", "p/staging/full", "p/per-alloc/gone/v", "p/per-alloc/kept/v", "p/per-alloc/kept/gone", "p/per-alloc/gone/.p/v", "p/per-alloc/private/.p/v", "p/other/dir", "p/meta", "q",
	} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o711); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"p/staging/full/f", "p/per-alloc/kept/v/f", "p/per-alloc/private/.p/v/f", "p/meta/v@kept.json"} {
		if err := os.WriteFile(filepath.Join(root, file), []byte("data"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"p/per-alloc/gone/block", "p/meta/v@gone.json"} {
		if err := os.WriteFile(filepath.Join(root, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	host, err := mount.New()
	if err != nil {
		t.Fatal(err)
	}
	err = volmgr.New(volmgr.Options{Root: root, Host: host}).Tidy()
	if err == nil || !strings.Contains(err.Error(), "p/staging/full") || !strings.Contains(err.Error(), "p/per-alloc/kept/v") || strings.Contains(err.Error(), "gone") {
		t.Errorf("error: %v", err)
	}
	var left []string
	err = filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if rel := strings.TrimPrefix(path, root); rel != "" {
			left = append(left, rel[1:])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"p", "p/meta", "p/meta/v@kept.json", "p/other", "p/other/dir", "p/per-alloc", "p/per-alloc/kept", "p/per-alloc/kept/v", "p/per-alloc/kept/v/f", "p/per-alloc/private", "p/per-alloc/private/.p", "p/per-alloc/private/.p/v", "p/per-alloc/private/.p/v/f", "p/staging", "p/staging/full", "p/staging/full/f", "q",
	}
	if !slices.Equal(left, want) {
		t.Errorf("left: %q, want %q", left, want)
	}
}

// TestTidyNothing checks that Tidy returns no error if the root does not exist.
func TestTidyNothing(t *testing.T) {
	host, err := mount.New()
	if err != nil {
		t.Fatal(err)
	}
	if err := volmgr.New(volmgr.Options{Root: filepath.Join(t.TempDir(), "none"), Host: host}).Tidy(); err != nil {
		t.Error(err)
	}
}
