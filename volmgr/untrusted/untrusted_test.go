package untrusted

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestReadFile: what is no regular file of the allowed size is refused, and nothing
// waits.
func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(
		os.WriteFile(at("full"), []byte("12345678"), 0o600),
		os.WriteFile(at("over"), []byte("123456789"), 0o600),
		os.WriteFile(at("empty"), nil, 0o600),
		os.Symlink("full", at("link")),
		os.Symlink("/proc/kmsg", at("kmsg")),
		os.Symlink("/dev/zero", at("zero")),
		os.Symlink("/proc/self/fdinfo", at("dir")),
		unix.Mkfifo(at("fifo"), 0o600),
		os.Symlink("fifo", at("to-fifo")),
	); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"full": "", "empty": "", "link": "",
		"over": "more than 8 bytes", "kmsg": "one of /proc", "zero": "not a regular file", "dir": "not a regular file",
		"fifo": "not a regular file", "to-fifo": "not a regular file", "none": "no such file",
	} {
		data, err := ReadFile(at(name), 8)
		if want == "" {
			if err != nil || name != "empty" && string(data) != "12345678" {
				t.Errorf("%s: %q, %v", name, data, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v; want an error with %q", name, data, err, want)
		}
	}
	if _, err := ReadFile(at("none"), 8); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestHangs: a read of storage that hangs ends, and a path has one read under way.
func TestHangs(t *testing.T) {
	release, calls := make(chan struct{}), make(chan string, 10)
	r := &reader{busy: map[string]bool{}, within: 10 * time.Millisecond, read: func(path string, _ int64) ([]byte, error) {
		calls <- path
		if path == "hung" {
			<-release
		}
		return []byte(path), nil
	}}
	for range 3 {
		if _, err := r.file("hung", 8); !errors.Is(err, errHangs) {
			t.Fatal(err)
		}
	}
	if data, err := r.file("other", 8); err != nil || string(data) != "other" {
		t.Fatalf("%q, %v", data, err)
	}
	if len(calls) != 2 {
		t.Errorf("%d reads, want one for each path", len(calls))
	}
	close(release)
	r.within = time.Minute
	for {
		if data, err := r.file("hung", 8); err == nil {
			if string(data) != "hung" {
				t.Errorf("%q", data)
			}
			return
		}
	}
}
