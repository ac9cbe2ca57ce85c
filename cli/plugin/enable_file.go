package plugin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/agent/recipe"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/volmgr/plugin"
)

// readPluginFile reads and parses a plugin file.
func readPluginFile(path string) (pluginFile, error) {
	f := pluginFile{path: path}
	var err error
	if f.text, err = readSmall(path, spec.MaxFileSize); err != nil {
		return f, command.FileError(path, err)
	}
	if _, f.def, err = pluginfile.Parse(path, f.text); err != nil {
		return f, &api.Error{Code: api.CodeInvalid, Message: err.Error()}
	}
	return f, nil
}

// readSmall reads a regular file with at most limit bytes.
func readSmall(path string, limit int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // nothing was written

	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "read", Path: path, Err: errors.New("it is not a regular file")}
	}
	if err != nil {
		return nil, err
	}

	text, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("it has more than %d bytes", limit)}
	}
	return text, err
}

// checkFilled returns an error while a file has a value that is not filled in, or a secret that does
// not exist.
func checkFilled(id string, files []pluginFile) error {
	r, _ := recipe.Find(id)
	var lacks []string
	for _, f := range files {
		// Without enabled: false, the parser refuses a placeholder, and names its line.
		text, err := pluginfile.SetEnabled(f.path, f.text, true)
		if err != nil {
			return &api.Error{Code: api.CodeRefused, Message: err.Error()}
		}
		if _, _, err := pluginfile.Parse(f.path, text); err != nil {
			lacks = append(lacks, strings.TrimSuffix(err.Error(), ", or set enabled: false"))
		}

		if r != nil {
			for _, name := range r.Empty(f.def) {
				lacks = append(lacks, fmt.Sprintf("%s: the value %q is empty", f.path, name))
			}
		}
		lacks = append(lacks, secretLacks(f.def)...)
		lacks = append(lacks, configLacks(r, f.def)...)
	}

	if len(lacks) == 0 {
		return nil
	}
	return &api.Error{Code: api.CodeRefused, Message: strings.Join(lacks, "; "), Hint: "fill in the values and secrets, and run the command again"}
}

// secretLacks names the files of secrets that are missing or empty. A file that the user may not read
// is not checked: the agent reads it as root.
func secretLacks(def *plugin.Definition) []string {
	var lacks []string
	for name, v := range def.Env() {
		if v.Secret == nil || v.Secret.File == "" {
			continue
		}
		content, err := readSmall(v.Secret.File, recipe.MaxSecret)
		switch {
		case errors.Is(err, fs.ErrPermission):
		case err != nil:
			lacks = append(lacks, fmt.Sprintf("secret %s: cannot read %s: %s", name, v.Secret.File, reason(err)))
		case len(bytes.TrimSpace(content)) == 0:
			lacks = append(lacks, fmt.Sprintf("secret %s: %s is empty", name, v.Secret.File))
		}
	}
	slices.Sort(lacks)
	return lacks
}

// configLacks names the values that are not filled in in the files that a container mounts. It reads
// only small regular files.
func configLacks(r *recipe.Recipe, def *plugin.Definition) []string {
	if r == nil || def.Container == nil {
		return nil
	}

	var lacks []string
	for _, m := range def.Container.Mounts {
		path, _, _ := strings.Cut(m, ":")
		if !strings.HasPrefix(filepath.Base(path), r.Name+"-") {
			continue
		}
		content, err := readSmall(path, recipe.MaxSecret)
		if errors.Is(err, fs.ErrPermission) {
			continue
		}
		if err != nil {
			lacks = append(lacks, fmt.Sprintf("cannot read %s: %s", path, reason(err)))
			continue
		}
		for _, name := range r.EmptyInConfig(filepath.Base(path), string(content)) {
			lacks = append(lacks, fmt.Sprintf("%s: the value %q is not filled in", path, name))
		}
	}
	return lacks
}

// setEnabled changes the key enabled of all files. It first prepares all changes, so that a file that
// cannot be changed prevents all of them.
func setEnabled(files []pluginFile, on bool) error {
	var texts [][]byte
	for _, f := range files {
		text, err := pluginfile.SetEnabled(f.path, f.text, on)
		if err != nil {
			return &api.Error{Code: api.CodeRefused, Message: err.Error()}
		}
		texts = append(texts, text)
	}

	for i, f := range files {
		if err := replaceFile(f, texts[i]); err != nil {
			return err
		}
	}
	return nil
}

// replaceFile replaces a file in one step, so that the agent never reads half a file. The new file has
// the mode and the owner of the old one. If the path is a symbolic link, the link stays.
func replaceFile(f pluginFile, text []byte) error {
	path, err := filepath.EvalSymlinks(f.path)
	if err != nil {
		return cannotWrite(f.path, err)
	}
	now, err := readSmall(path, spec.MaxFileSize)
	if err != nil {
		return cannotWrite(f.path, err)
	}
	if !bytes.Equal(now, f.text) {
		return &api.Error{Code: api.CodeRefused, Message: f.path + " has changed meanwhile", Hint: "run the command again"}
	}
	info, err := os.Stat(path)
	if err != nil {
		return cannotWrite(f.path, err)
	}

	// The agent ignores a name that begins with a dot.
	temp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cannotWrite(temp, err)
	}
	if err := writeNew(temp, text, info.Mode().Perm()); err != nil {
		return cannotWrite(temp, err)
	}
	err = errors.Join(os.Chmod(temp, info.Mode().Perm()), keepOwner(temp, info))
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return cannotWrite(f.path, errors.Join(err, os.Remove(temp)))
	}
	return nil
}
