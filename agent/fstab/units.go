package fstab

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// unitDirs lists the directories in which systemd searches for system units, in search order
// (systemd.unit(5)). It omits the directory of units that systemd generates from fstab, because
// this package reads fstab itself.
var unitDirs = []string{
	"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system",
}

const suffix = ".mount"

// readUnits reads the mount units of type csi. If several directories contain a unit of the same
// name, readUnits uses the file in the first directory.
func readUnits(dirs []string) (entries []Entry, err error) {
	var errs []error
	seen := map[string]bool{}
	for _, dir := range dirs {
		list, err := os.ReadDir(dir)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("cannot list %s: %w", dir, err))
			}
			continue
		}

		for _, f := range list {
			name := f.Name()
			if !strings.HasSuffix(name, suffix) || f.IsDir() || seen[name] {
				continue
			}

			seen[name] = true
			e, ok, err := readUnit(dirs, filepath.Join(dir, name))
			if err != nil {
				errs = append(errs, err)
			} else if ok {
				entries = append(entries, e)
			}
		}
	}

	return entries, errors.Join(errs...)
}

// readUnit reads a unit file and its drop-ins. The result ok is false if the unit's type is not
// csi.
func readUnit(dirs []string, path string) (e Entry, ok bool, err error) {
	e = Entry{File: path, Unit: filepath.Base(path)}
	var kind, options string
	files := append([]string{path}, dropIns(dirs, e.Unit)...)
	for _, file := range files {
		raw, err := readFile(file)
		if err != nil {
			return e, false, err
		}

		for key, value := range settings(string(raw)) {
			switch key {
			case "Unit.After":
				e.After = append(e.After, strings.Fields(value)...)
				if value == "" { // an empty value resets the list
					e.After = nil
				}
			case "Mount.What":
				e.Volume = percent(value)
			case "Mount.Where":
				e.Dir = percent(value)
			case "Mount.Type":
				kind = value
			case "Mount.Options":
				options = percent(value)
			}
		}
	}

	e.Options = SplitOptions(options)
	return e, kind == Type, nil
}

// percent decodes escaped percent signs. A percent sign without an escape begins a specifier, such
// as %i (systemd.unit(5)).
func percent(value string) string { return strings.ReplaceAll(value, "%%", "%") }

// dropIns returns the paths of a unit's drop-ins. The paths are sorted by file name, regardless of
// their directories, because systemd applies drop-ins in this order.
func dropIns(dirs []string, unit string) []string {
	byName := map[string]string{}
	for _, dir := range dirs {
		found, _ := filepath.Glob(filepath.Join(dir, unit+".d", "*.conf")) // the pattern is valid
		for _, path := range found {
			if name := filepath.Base(path); byName[name] == "" {
				byName[name] = path
			}
		}
	}

	var paths []string
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		paths = append(paths, byName[name])
	}

	return paths
}

// blank lists the characters that systemd removes from both ends of a setting.
const blank = " \t\n\r"

// settings yields the settings of a unit file in order, each with a key of the form "Section.Key"
// and a value (systemd.syntax(7)).
//
// The function DeserializeOptions of go-systemd is not suitable, because it rejects some valid
// files. A valid file may have a line over 2048 bytes, a line without "=", or a comment between
// continued lines.
func settings(text string) func(yield func(key, value string) bool) {
	return func(yield func(key, value string) bool) {
		section := ""
		for line := range unitLines(text) {
			line = strings.Trim(line, blank)
			if name, ok := strings.CutPrefix(line, "["); ok {
				section = strings.TrimSuffix(name, "]")
				continue
			}

			key, value, ok := strings.Cut(line, "=")
			if ok && !yield(section+"."+strings.TrimRight(key, blank), strings.TrimLeft(value, blank)) {
				return
			}
		}
	}
}

// unitLines yields the lines of a unit file, except comments. If a line ends with a backslash,
// unitLines joins it with the next line.
func unitLines(text string) func(yield func(line string) bool) {
	return func(yield func(line string) bool) {
		var held strings.Builder // a builder is fast even for a million continued lines
		for line := range strings.Lines(text) {
			line = strings.TrimLeft(strings.TrimRight(line, "\r\n"), blank)
			if line != "" && (line[0] == '#' || line[0] == ';') {
				continue // a comment does not end a continued line
			}
			if continues(line) {
				held.WriteString(line[:len(line)-1] + " ")
				continue
			}

			if held.Len() > 0 {
				held.WriteString(line)
				line = held.String()
				held.Reset()
			}

			if !yield(line) {
				return
			}
		}

		if held.Len() > 0 { // the end of the file also ends a continued line
			yield(held.String())
		}
	}
}

// continues reports whether a line ends with an unescaped backslash.
func continues(line string) bool {
	return (len(line)-len(strings.TrimRight(line, `\`)))%2 == 1
}
