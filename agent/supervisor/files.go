package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/volume"
)

// maxFile bounds a plugin file, in bytes.
const maxFile = 1 << 20

// want is what the plugin files ask of one plugin: a definition, or none
// because of err.
type want struct {
	def  *volume.PluginDefinition
	file string
	err  error
}

// found is one plugin file as read.
type found struct {
	want
	id string // empty if not even that could be read
}

// equal reports whether two files ask for the same.
func (f found) equal(o found) bool {
	return f.id == o.id && f.file == o.file && f.def.Equal(o.def) && fmt.Sprint(f.err) == fmt.Sprint(o.err)
}

// readFiles reads <dir>/*.yaml in the order of their names. A bad file is a
// result, not an error; a directory that does not exist has no files.
func readFiles(dir string) ([]found, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || dir == "" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the plugin directory: %w", err)
	}
	var all []found
	for _, e := range entries {
		if isPluginFile(e.Name()) {
			all = append(all, readFile(filepath.Join(dir, e.Name())))
		}
	}
	return all, nil
}

// isPluginFile says whether a name is a plugin file's; editors' swap and backup
// files have others.
func isPluginFile(name string) bool {
	return !strings.HasPrefix(name, ".") && filepath.Ext(name) == ".yaml"
}

func readFile(path string) found {
	f := found{want: want{file: path}}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		f.err = fmt.Errorf("cannot read plugin file: %w", err)
		return f
	case !info.Mode().IsRegular():
		f.err = fmt.Errorf("cannot read plugin file: %s is not a regular file", path)
		return f
	case info.Size() > maxFile:
		f.err = fmt.Errorf("cannot read plugin file: %s has %d bytes; at most %d are read", path, info.Size(), maxFile)
		return f
	}
	data, err := os.ReadFile(path)
	if err != nil {
		f.err = fmt.Errorf("cannot read plugin file: %w", err)
		return f
	}
	f.id, f.def, f.err = parse(path, data)
	return f
}

// wants settles which file speaks for which plugin. Good files come first, in
// the order of their names; what is left over is shown under its file's name.
// known finds the plugin that a file which cannot be read belonged to.
func (s *Supervisor) wants(all []found, known func(file string) string) map[string]want {
	out := map[string]want{}
	sockets := map[string]string{} // path to file
	var bad []found
	for _, f := range all {
		if f.err == nil {
			f.err = s.conflict(f, out, sockets)
		}
		if f.err != nil {
			f.def = nil
			bad = append(bad, f)
			continue
		}
		out[f.id] = f.want
		if f.def.Socket != "" {
			sockets[f.def.Socket] = f.file
		}
	}
	for _, f := range bad {
		id := f.id
		if id == "" {
			id = known(f.file)
		}
		if _, taken := out[id]; taken || id == "" {
			id = filepath.Base(f.file)
		}
		if _, taken := out[id]; taken {
			id = f.file
		}
		out[id] = f.want
	}
	if _, given := out[localID]; !given && len(s.opts.BuiltinArgv) > 0 {
		out[localID] = want{def: localDefinition()}
	}
	return out
}

// conflict says why a good file cannot stand beside those before it.
func (s *Supervisor) conflict(f found, taken map[string]want, sockets map[string]string) error {
	if other, twice := taken[f.id]; twice {
		if other.def.Type == f.def.Type && other.def.Instance == f.def.Instance {
			return fmt.Errorf("%s: plugin %q with the same type and instance is defined in %s already", f.file, f.id, other.file)
		}
		return fmt.Errorf("%s: plugin %q is defined in %s already; several parts of one plugin are not supported by this release", f.file, f.id, other.file)
	}
	if f.def.Socket != "" {
		if other, twice := sockets[f.def.Socket]; twice {
			return fmt.Errorf("%s: socket %s is another plugin's already, in %s", f.file, f.def.Socket, other)
		}
		return nil
	}
	if f.def.Builtin != "" && len(s.opts.BuiltinArgv) == 0 {
		return fmt.Errorf("%s: this agent has no builtin plugins", f.file)
	}
	if err := checkSocketPath(s.opts.paths(f.id).socket); err != nil {
		return fmt.Errorf("%s: %w; choose a shorter --runtime-dir", f.file, err)
	}
	return nil
}

// sortedIDs returns the keys of a map in order.
func sortedIDs[V any](m map[string]V) []string {
	ids := make([]string, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
