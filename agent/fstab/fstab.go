// Package fstab reads what the host is told to mount of volumes: the csi lines of
// fstab(5) and the mount units of that type (systemd.mount(5)), with the options
// that may stand there, and says what is wrong with them. It asks nobody and changes
// nothing, so that it serves with an agent and without.
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

// DefaultFile is where the lines are, unless LIBMOUNT_FSTAB names another file (mount(8)).
const DefaultFile = "/etc/fstab"

// Entry is one thing that is to be mounted.
type Entry struct {
	File string // where it stands
	Line int    // in it; 0 of a unit
	Unit string // the unit's name; empty of a line in fstab
	// Volume is what is to be mounted, Dir where, Options how: as they stand, with
	// fstab's escapes undone.
	Volume  string
	Dir     string
	Options []string
	// After are the units that a unit says it comes after.
	After []string
}

// Place is where the entry stands, for people.
func (e Entry) Place() string {
	if e.Unit != "" {
		return e.File
	}
	return fmt.Sprintf("%s, line %d", e.File, e.Line)
}

// Has reports whether an option stands there, with or without a value.
func (e Entry) Has(name string) bool {
	_, ok := e.Value(name)
	return ok
}

// Value is an option's value, the last one's if it stands there twice.
func (e Entry) Value(name string) (value string, ok bool) {
	for _, o := range e.Options {
		if key, v, _ := strings.Cut(o, "="); key == name {
			value, ok = v, true
		}
	}
	return value, ok
}

// Files say where to read.
type Files struct {
	Fstab string
	// Units are the directories of unit files, the first one counts most.
	Units []string
}

// System is where this host keeps them. mount(8) lets LIBMOUNT_FSTAB name another
// table, and systemd(1) SYSTEMD_UNIT_PATH other directories; an ":" at its end adds the
// usual ones.
func System(getenv func(string) string) Files {
	f := Files{Fstab: getenv("LIBMOUNT_FSTAB"), Units: unitDirs}
	if f.Fstab == "" {
		f.Fstab = DefaultFile
	}
	if path := getenv("SYSTEMD_UNIT_PATH"); path != "" {
		own, more := strings.CutSuffix(path, ":")
		f.Units = strings.Split(own, ":")
		if more {
			f.Units = append(f.Units, unitDirs...)
		}
	}
	return f
}

// Read returns all entries, those of fstab first. What cannot be read is in the
// error, beside what can; a file that is not there is none.
func Read(f Files) ([]Entry, error) {
	entries, err := readTable(f.Fstab)
	units, uerr := readUnits(f.Units)
	return append(entries, units...), errors.Join(err, uerr)
}

// maxFile bounds what is read of a file, in bytes: no table that people write is
// longer.
const maxFile = 4 << 20

func readFile(path string) ([]byte, error) {
	raw, err := untrusted.ReadFile(path, maxFile)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, untrusted.ErrNotRegular):
		return nil, nil // a unit that is masked is a link to /dev/null
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

// parseTable reads the csi lines of a table. A line with fewer than three fields
// cannot name a type, and is not ours to judge.
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

// Fields splits a line of fstab, or of a mount table, at the blanks that separate its fields.
// Any other white space is part of a name.
func Fields(line string) []string {
	return strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' || r == '\n' })
}

// Unescape undoes what fstab(5), and the kernel in mount tables, write for blanks: a backslash
// and three octal digits.
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

// SplitOptions splits the options of a mount at their commas, but for those between
// double quotes, which are dropped (mount(8)).
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
