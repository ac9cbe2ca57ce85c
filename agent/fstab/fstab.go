// Package fstab reads the volume mounts that an operator has configured on a host. These are the
// csi lines of fstab(5), and the mount units of type csi (systemd.mount(5)). The package also
// defines the valid options, and finds mistakes in the entries. It works without an agent, because
// it sends no request to the agent. It changes nothing.
package fstab

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/volagent/volagent/volmgr/untrusted"
)

// Type is the file system type of a line that mounts a volume.
const Type = "csi"

// DefaultFile is the default path of fstab. The environment variable LIBMOUNT_FSTAB can specify
// another file (mount(8)).
const DefaultFile = "/etc/fstab"

// Entry is one configured mount: a line of fstab, or a mount unit.
type Entry struct {
	File string // the file that contains the entry
	Line int    // the number of the line in the file; 0 for a unit
	Unit string // the unit's name; empty for a line of fstab

	// Volume, Dir and Options are the fields of the entry, with fstab's escapes decoded.
	Volume  string
	Dir     string
	Options []string

	// After lists the units after which a mount unit is ordered.
	After []string
}

// Place returns the position of the entry, for messages.
func (e Entry) Place() string {
	if e.Unit != "" {
		return e.File
	}
	return fmt.Sprintf("%s, line %d", e.File, e.Line)
}

// Has reports whether the entry has an option, with or without a value.
func (e Entry) Has(name string) bool {
	_, ok := e.Value(name)
	return ok
}

// Value returns an option's value. If the option occurs several times, Value returns the last
// value.
func (e Entry) Value(name string) (value string, ok bool) {
	for _, o := range e.Options {
		if key, v, _ := strings.Cut(o, "="); key == name {
			value, ok = v, true
		}
	}
	return value, ok
}

// maxFile is the maximum size of a file, in bytes. No real fstab is larger.
const maxFile = 4 << 20

func readFile(path string) ([]byte, error) {
	raw, err := untrusted.ReadFile(path, maxFile)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, untrusted.ErrNotRegular):
		return nil, nil // a masked unit is a symbolic link to /dev/null
	case err != nil:
		return nil, fmt.Errorf("cannot read %s: %w", path, err)
	default:
		return raw, nil
	}
}

func readTable(path string) ([]Entry, error) {
	raw, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return parseTable(path, raw), nil
}

// parseTable returns the entries for all lines of a table that have the type csi. A line with fewer
// than three fields has no type, so parseTable ignores it.
func parseTable(path string, raw []byte) (entries []Entry) {
	lines := bufio.NewScanner(bytes.NewReader(raw))
	lines.Buffer(nil, maxFile)

	for n := 1; lines.Scan(); n++ {
		f := Fields(lines.Text())
		if len(f) < 3 || strings.HasPrefix(f[0], "#") || f[2] != Type {
			continue
		}

		e := Entry{File: path, Line: n, Volume: Unescape(f[0]), Dir: Unescape(f[1])}
		if len(f) > 3 {
			e.Options = SplitOptions(Unescape(f[3]))
		}

		entries = append(entries, e)
	}

	return entries
}

// Fields splits a line of fstab, or of a mount table, at the blanks between its fields. Only
// spaces, tabs and newlines separate fields; other white space is part of a name.
func Fields(line string) []string {
	return strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' || r == '\n' })
}

// Unescape decodes escapes in fstab(5) and in the kernel's mount tables. Such an escape consists of
// a backslash and three octal digits.
func Unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}

	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}

	return b.String()
}

// SplitOptions splits mount options at commas. Like mount(8), it does not split at commas between
// double quotes, and it removes the quotes.
func SplitOptions(s string) (options []string) {
	quoted := false
	fields := strings.FieldsFunc(s, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return r == ',' && !quoted
	})

	for _, f := range fields {
		if f = strings.TrimSpace(strings.ReplaceAll(f, `"`, "")); f != "" {
			options = append(options, f)
		}
	}

	return options
}
