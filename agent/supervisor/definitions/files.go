package definitions

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/untrusted"
)

// maxFile is the maximum size of a plugin file, in bytes.
const maxFile = 1 << 20

// RunTime stands in place of a file's path for a definition that was registered at run time.
const RunTime = "a registration"

// Want is the wanted definition of one part of a plugin. If Err is set, the part has no valid
// definition.
type Want struct {
	ID         string
	Definition *plugin.Definition
	File       string
	Err        error
}

// Found is the result of reading one plugin file.
type Found struct {
	Want // Want.ID is empty if the agent cannot read the id in the file
}

// equal reports whether reading a plugin file had the same result twice.
func (f Found) equal(o Found) bool {
	return f.ID == o.ID && f.File == o.File && f.Definition.Equal(o.Definition) && fmt.Sprint(f.Err) == fmt.Sprint(o.Err)
}

// disabled reports whether the file is valid and has enabled: false.
func (f Found) disabled() bool { return f.Err == nil && f.Definition != nil && f.Definition.Disabled }

// disabledFiles returns those of the files that have enabled: false.
func disabledFiles(files []Found) []Found {
	return slices.DeleteFunc(slices.Clone(files), func(f Found) bool { return !f.disabled() })
}

// after returns the sort key of a file. It is empty for a registration, so registrations sort
// before files.
func (f Found) after() string {
	if f.File == RunTime {
		return ""
	}
	return f.File
}

// readFiles reads the files <dir>/*.yaml, sorted by name. For a bad file, it returns a result that
// contains the error. If the directory does not exist, it returns no files.
func readFiles(dir string) ([]Found, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || dir == "" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the plugin directory: %w", err)
	}

	var all []Found
	for _, e := range entries {
		if isPluginFile(e.Name()) {
			all = append(all, readFile(filepath.Join(dir, e.Name())))
		}
	}

	return all, nil
}

// enabled returns the files without those that disabledFiles returns.
func enabled(files []Found) []Found { return slices.DeleteFunc(slices.Clone(files), Found.disabled) }

// isPluginFile reports whether name is the name of a plugin file. The swap and backup files of
// editors have other names.
func isPluginFile(name string) bool {
	return !strings.HasPrefix(name, ".") && filepath.Ext(name) == ".yaml"
}

func readFile(path string) Found {
	f := Found{Want: Want{File: path}}
	data, err := untrusted.ReadFile(path, maxFile)
	if err != nil {
		f.Err = fmt.Errorf("cannot read plugin file %s: %w", path, err)
		return f
	}

	f.ID, f.Definition, f.Err = pluginfile.Parse(path, data)
	return f
}
