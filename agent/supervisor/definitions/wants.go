package definitions

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/volmgr/plugin"
)

// Rules decides which definitions can be used at the same time.
type Rules struct {
	Builtin bool      // this agent has a bundled driver
	Dirs    part.Dirs // used to find the default paths of sockets
}

// wants decides which file defines each part. It first processes the valid files, sorted by name. A
// bad file belongs to the part whose definition came from the same file. If there is no such part,
// the status shows the bad file under its plugin's id or its file name. The argument held contains
// the definitions in use. The result is given by slot, the key of a part.
func (r Rules) wants(all []Found, held map[string]*plugin.Definition) map[string]Want {
	good := map[string][]Found{} // the valid files of each plugin
	var bad []Found
	for _, f := range all {
		if f.disabled() {
			continue // as if the file did not exist
		}

		if f.Err == nil {
			f.Err = besides(f, good[f.ID])
		}

		if f.Err == nil && f.Definition.Builtin != "" && !r.Builtin {
			f.Err = fmt.Errorf("%s: this agent has no builtin plugins", f.File)
		}

		if f.Err != nil {
			bad = append(bad, f)
		} else {
			good[f.ID] = append(good[f.ID], f)
		}
	}

	if _, given := good[pluginfile.LocalID]; !given && r.Builtin && !slices.ContainsFunc(bad, func(f Found) bool { return f.ID == pluginfile.LocalID }) {
		good[pluginfile.LocalID] = []Found{{Want{ID: pluginfile.LocalID, Definition: pluginfile.Local()}}}
	}

	taken := map[string]Found{}
	for _, id := range sortedKeys(good) {
		maps.Copy(taken, slots(good[id], held))
	}

	out := map[string]Want{}
	bad = append(bad, r.sockets(taken)...)
	for slot, f := range taken {
		out[slot] = f.Want
	}

	for _, f := range bad {
		slot, id := shownAs(f, out, held)
		out[slot] = Want{ID: id, File: f.File, Err: f.Err}
	}

	return out
}

// shownAs returns where the status shows a bad file: the slot, which is the key of a part, and the
// id of the plugin.
func shownAs(f Found, out map[string]Want, held map[string]*plugin.Definition) (slot, id string) {
	free := func(slot string) bool { _, taken := out[slot]; return !taken && slot != "" }
	for _, slot := range sortedKeys(held) {
		def := held[slot]
		if f.File == RunTime && def.Registered && samePart(f.Definition, def) && free(slot) {
			return slot, def.ID
		}
		if def.File == f.File && (f.ID == "" || f.ID == def.ID) && free(slot) {
			return slot, def.ID
		}
	}

	for _, id := range []string{f.ID, filepath.Base(f.File)} {
		if free(id) {
			return id, id
		}
	}

	return f.File, f.File
}

// sockets removes the files whose socket or unit cannot be used from taken, and returns them. Two
// parts cannot share a unit: the unit has only one socket, and stopping one part would also stop
// the other.
func (r Rules) sockets(taken map[string]Found) (bad []Found) {
	bySocket, byUnit := map[string]Found{}, map[string]Found{}
	slots := slices.SortedFunc(maps.Keys(taken), func(a, b string) int {
		return cmp.Or(cmp.Compare(taken[a].after(), taken[b].after()), cmp.Compare(a, b))
	})
	for _, slot := range slots {
		f := taken[slot]
		path := f.Definition.Socket
		if path == "" {
			if path = r.Dirs.Paths(f.ID, slot).Socket; pluginfile.CheckSocketPath(path) != nil {
				f.Err = fmt.Errorf("%s: %w; choose a shorter --runtime-dir", f.File, pluginfile.CheckSocketPath(path))
			}
		}

		if other, twice := bySocket[path]; twice && f.Err == nil {
			f.Err = f.collides("socket "+path, other)
		}

		if other, twice := byUnit[f.Definition.Unit]; twice && f.Err == nil {
			f.Err = f.collides("unit "+f.Definition.Unit, other)
		}

		if f.Err != nil {
			bad = append(bad, f)
			delete(taken, slot)
			continue
		}

		bySocket[path] = f
		if f.Definition.Unit != "" {
			byUnit[f.Definition.Unit] = f
		}
	}

	return bad
}

// collides returns the error for a file whose socket or unit is already used by another part.
func (f Found) collides(what string, other Found) error {
	whose := "another plugin's"
	if other.ID == f.ID {
		whose = "another part's"
	}
	return fmt.Errorf("%s: %s is %s already, in %s", f.File, what, whose, cmp.Or(other.File, "no file"))
}

// sortedKeys returns the sorted keys of a map.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
