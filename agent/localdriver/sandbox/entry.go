package sandbox

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// DescribeEntry describes all properties of a file or directory that a copy must keep.
func DescribeEntry(t *testing.T, path string) string {
	t.Helper()
	var st unix.Stat_t
	Must(t, unix.Lstat(path, &st))
	words := fmt.Sprintf("mode %o owner %d:%d rdev %d nlink %d mtime %d.%d", st.Mode, st.Uid, st.Gid, st.Rdev, st.Nlink,
		st.Mtim.Sec, st.Mtim.Nsec)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR: // omit the number of links, which depends on the filesystem
		words = strings.Replace(words, fmt.Sprintf("nlink %d", st.Nlink), "", 1)
	// only for regular files, because reading an entry of another type can change its access time
	case unix.S_IFREG:
		words += fmt.Sprintf(" atime %d.%d", st.Atim.Sec, st.Atim.Nsec)
	}
	raw, err := readAll(func(b []byte) (int, error) { return unix.Llistxattr(path, b) })
	Must(t, err)
	for _, name := range Sorted(strings.FieldsFunc(string(raw), func(r rune) bool { return r == 0 })...) {
		value, err := readAll(func(b []byte) (int, error) { return unix.Lgetxattr(path, name, b) })
		Must(t, err)
		words += fmt.Sprintf(" %s=%x", name, value)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		to, err := os.Readlink(path)
		Must(t, err)
		words += " to " + to
	}
	return words
}

// readAll calls get with a buffer for the longest possible list or value of extended attributes.
func readAll(get func([]byte) (int, error)) ([]byte, error) {
	buf := make([]byte, 1<<16)
	n, err := get(buf)
	return buf[:max(n, 0)], err
}
