package pluginlog

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plugin.log")
	same := func(s string) string { return s }
	if lines, err := tail(path, 3, same); lines != nil || err != nil {
		t.Errorf("no log: %q, %v", lines, err)
	}
	write := func(s string) {
		t.Helper()
		f, err := Open(path)
		if err == nil {
			_, err = f.WriteString(s)
		}
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write("one\ntwo\n\x1b[31mthree\x1b[0m s3cret\nfour")
	lines, err := tail(path, 3, func(s string) string { return strings.ReplaceAll(s, "s3cret", "***") })
	if want := []string{"two", "[31mthree[0m ***", "four"}; fmt.Sprint(lines) != fmt.Sprint(want) || err != nil {
		t.Errorf("got %q, %v", lines, err)
	}
	// This log has more than tailBytes bytes. Its last line is within the last tailBytes bytes.
	write("\n" + strings.Repeat("x", tailBytes+10) + "\nlast\n")
	if lines, err := tail(path, 3, same); fmt.Sprint(lines) != "[last]" || err != nil {
		t.Errorf("got %d lines, %v", len(lines), err)
	}
	// The agent rotates the log when a plugin starts, and also while a plugin has the log open.
	if err := os.Truncate(path, maxLog+1); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size := func(path string) int64 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	if size(path) != 0 || size(path+".1") != maxLog+1 {
		t.Errorf("sizes %d and %d", size(path), size(path+".1"))
	}
	if err := Trim(path); err != nil || size(path+".1") != maxLog+1 {
		t.Errorf("a small log is trimmed: %v", err)
	}
	if err := os.Truncate(path, maxLog+2); err != nil {
		t.Fatal(err)
	}
	if err := Trim(path); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("on"); err != nil || size(path) != 2 || size(path+".1") != maxLog+2 {
		t.Errorf("sizes %d and %d, %v", size(path), size(path+".1"), err)
	}
}
