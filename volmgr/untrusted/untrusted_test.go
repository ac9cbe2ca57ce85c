package untrusted

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestReadFile checks that ReadFile accepts only regular files of the permitted size, and that it
// never blocks.
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
		"over": "more than 8 bytes", "kmsg": "file in procfs", "zero": "not a regular file", "dir": "not a regular file",
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

// TestReadTogether reads one path many times at once, because several volumes may have the same
// secret. Each read must return the content that the file had when the read began, or a newer one.
// Only one read may run at a time.
func TestReadTogether(t *testing.T) {
	var now, running atomic.Int64
	release := make(chan struct{})
	r := &reader{busy: map[string]*underway{}, within: time.Minute, read: func(string, int64) ([]byte, error) {
		if running.Add(1) > 1 {
			t.Error("two reads of one path are under way")
		}
		defer running.Add(-1)
		data := strconv.AppendInt(nil, now.Load(), 10)
		<-release
		return data, nil
	}}
	first := make(chan string, 1)
	go func() {
		data, err := r.file("key", 8)
		first <- fmt.Sprint(string(data), err)
	}()
	for running.Load() == 0 {
		runtime.Gosched()
	}
	now.Store(1)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if data, err := r.file("key", 8); err != nil || string(data) != "1" {
				t.Errorf("one of many reads %q, %v", data, err)
			}
		})
	}
	close(release)
	all.Wait()
	if got := <-first; got != "0<nil>" {
		t.Errorf("the first reads %s", got)
	}
}

// TestHangs checks that a read of hanging storage fails within the time limit, and that only one
// read of each path runs.
func TestHangs(t *testing.T) {
	release, calls := make(chan struct{}), make(chan string, 10)
	r := &reader{busy: map[string]*underway{}, within: 10 * time.Millisecond, read: func(path string, _ int64) ([]byte, error) {
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
