package supervisor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/volmgr/untrusted"
	"github.com/volagent/volagent/volmgr/volume"
)

// maxFile bounds a plugin file, in bytes.
const maxFile = 1 << 20

// want is the state of one part of a plugin that the plugin files ask for: a definition, or none
// because of err.
type want struct {
	id   string
	def  *volume.PluginDefinition
	file string
	err  error
}

// found is one plugin file as it was read.
type found struct {
	want // its id is empty if the id could not be read either
}

// equal reports whether two plugin files were read with the same result.
func (f found) equal(o found) bool {
	return f.id == o.id && f.file == o.file && f.def.Equal(o.def) && fmt.Sprint(f.err) == fmt.Sprint(o.err)
}

// after returns the sort key of a file. Registrations come before files.
func (f found) after() string {
	if f.file == registeredFile {
		return ""
	}
	return f.file
}

// readFiles reads <dir>/*.yaml in the order of their names. A bad file is a result, not an error. A
// directory that does not exist has no files.
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

// isPluginFile reports whether a name is that of a plugin file. The swap and backup files of
// editors have other names.
func isPluginFile(name string) bool {
	return !strings.HasPrefix(name, ".") && filepath.Ext(name) == ".yaml"
}

func readFile(path string) found {
	f := found{want: want{file: path}}
	data, err := untrusted.ReadFile(path, maxFile)
	if err != nil {
		f.err = fmt.Errorf("cannot read plugin file %s: %w", path, err)
		return f
	}

	f.id, f.def, f.err = pluginfile.Parse(path, data)
	return f
}

// wants decides, for each slot, which file defines that part. Valid files come first, in the order
// of their names. A bad file is shown at the part whose definition in use came from it. If there is
// none, it is shown under its plugin's id or its file name. held has the definitions in use.
func (s *Supervisor) wants(all []found, held map[string]*volume.PluginDefinition) map[string]want {
	good := map[string][]found{} // by plugin
	var bad []found
	for _, f := range all {
		if f.err == nil {
			f.err = besides(f, good[f.id])
		}

		if f.err == nil && f.def.Builtin != "" && len(s.opts.BuiltinArgv) == 0 {
			f.err = fmt.Errorf("%s: this agent has no builtin plugins", f.file)
		}

		if f.err != nil {
			bad = append(bad, f)
		} else {
			good[f.id] = append(good[f.id], f)
		}
	}

	if _, given := good[pluginfile.LocalID]; !given && len(s.opts.BuiltinArgv) > 0 && !slices.ContainsFunc(bad, func(f found) bool { return f.id == pluginfile.LocalID }) {
		good[pluginfile.LocalID] = []found{{want{id: pluginfile.LocalID, def: pluginfile.Local()}}}
	}

	taken := map[string]found{}
	for _, id := range sortedIDs(good) {
		maps.Copy(taken, slots(good[id], held))
	}

	out := map[string]want{}
	bad = append(bad, s.sockets(taken)...)
	for slot, f := range taken {
		out[slot] = f.want
	}

	for _, f := range bad {
		slot, id := shownAs(f, out, held)
		out[slot] = want{id: id, file: f.file, err: f.err}
	}

	return out
}

// shownAs returns the slot at which a bad file is shown, and the plugin that it belongs to.
func shownAs(f found, out map[string]want, held map[string]*volume.PluginDefinition) (slot, id string) {
	free := func(slot string) bool { _, taken := out[slot]; return !taken && slot != "" }
	for _, slot := range sortedIDs(held) {
		def := held[slot]
		if f.file == registeredFile && def.Registered && samePart(f.def, def) && free(slot) {
			return slot, def.ID
		}
		if def.File == f.file && (f.id == "" || f.id == def.ID) && free(slot) {
			return slot, def.ID
		}
	}

	for _, id := range []string{f.id, filepath.Base(f.file)} {
		if free(id) {
			return id, id
		}
	}

	return f.file, f.file
}

// sockets removes the files whose socket or unit cannot be used, and returns them. Two parts cannot
// share a unit: it has one socket, and a stop for one plugin would also stop the other.
func (s *Supervisor) sockets(taken map[string]found) (bad []found) {
	bySocket, byUnit := map[string]found{}, map[string]found{}
	slots := slices.SortedFunc(maps.Keys(taken), func(a, b string) int {
		return cmp.Or(cmp.Compare(taken[a].after(), taken[b].after()), cmp.Compare(a, b))
	})
	for _, slot := range slots {
		f := taken[slot]
		path := f.def.Socket
		if path == "" {
			if path = s.opts.dirs().Paths(f.id, slot).Socket; pluginfile.CheckSocketPath(path) != nil {
				f.err = fmt.Errorf("%s: %w; choose a shorter --runtime-dir", f.file, pluginfile.CheckSocketPath(path))
			}
		}

		if other, twice := bySocket[path]; twice && f.err == nil {
			f.err = f.collides("socket "+path, other)
		}

		if other, twice := byUnit[f.def.Unit]; twice && f.err == nil {
			f.err = f.collides("unit "+f.def.Unit, other)
		}

		if f.err != nil {
			bad = append(bad, f)
			delete(taken, slot)
			continue
		}

		bySocket[path] = f
		if f.def.Unit != "" {
			byUnit[f.def.Unit] = f
		}
	}

	return bad
}

// collides returns the error for a file that names a socket or unit of another part.
func (f found) collides(what string, other found) error {
	whose := "another plugin's"
	if other.id == f.id {
		whose = "another part's"
	}
	return fmt.Errorf("%s: %s is %s already, in %s", f.file, what, whose, cmp.Or(other.file, "no file"))
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
