package classes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/volmgr/untrusted"
)

// ending is the ending of the names of class files.
const ending = ".yaml"

// readDir reads the class files of a directory, in the order of their names. A missing directory
// contains no classes. If the directory cannot be used, the only entry is the directory itself.
func readDir(dir string) (all []entry) {
	err := trust(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	var files []os.DirEntry
	if err == nil {
		files, err = os.ReadDir(dir)
	}
	if err != nil {
		return []entry{{file: dir, mistakes: []mistake{{text: fmt.Sprintf("cannot read the directory of class files: %v", err)}}}}
	}

	for _, f := range files {
		hidden := strings.HasPrefix(f.Name(), ".") // also the temporary files of editors
		if !hidden && filepath.Ext(f.Name()) == ending {
			all = append(all, readFile(filepath.Join(dir, f.Name())))
		}
	}

	refuseTwice(all)
	return all
}

// readFile reads a class file. The id of a class without an id is the name of its file.
func readFile(path string) entry {
	e := entry{file: path}
	stem := strings.TrimSuffix(filepath.Base(path), ending)

	err := trust(path)
	var text []byte
	if err == nil {
		text, err = untrusted.ReadFile(path, spec.MaxFileSize)
	}
	if err == nil {
		e.doc, err = spec.ReadClass(path, text, stem)
	}

	var mistakes spec.Errors
	switch {
	case err == nil:
		return e
	case errors.As(err, &mistakes):
		for _, m := range mistakes {
			e.mistakes = append(e.mistakes, mistake{m.Line, m.Message})
		}
	default:
		e.mistakes = []mistake{{text: reason(err)}}
	}

	if e.doc.Spec.ID == "" && spec.CheckClassID(stem) == nil {
		e.doc.Spec.ID = stem
	}
	return e
}

// reason returns the text of an error without the path, which the caller names itself.
func reason(err error) string {
	var path *fs.PathError
	if errors.As(err, &path) {
		return "cannot read the file: " + path.Err.Error()
	}
	return err.Error()
}

// refuseTwice adds a mistake to each class that two valid files contain. The agent does not choose
// between them, because the choice decides where data is stored.
func refuseTwice(all []entry) {
	files := map[string][]string{}
	for _, e := range all {
		if len(e.mistakes) == 0 {
			files[e.doc.Spec.ID] = append(files[e.doc.Spec.ID], e.file)
		}
	}

	for i, e := range all {
		same := files[e.doc.Spec.ID]
		if len(e.mistakes) > 0 || len(same) < 2 {
			continue
		}

		other := same[0]
		if other == e.file {
			other = same[1]
		}
		all[i].mistakes = []mistake{{text: fmt.Sprintf("class %q is also in %s; remove one of the files", e.doc.Spec.ID, other)}}
	}
}

// othersWrite are the bits of a mode that let other users than the owner write.
const othersWrite = 0o022

// trust returns an error if another user than root can change a file or a directory. A class decides
// which secrets go to which plugin. If the agent does not run as root, its own user counts as root.
func trust(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}

	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return errors.New("its owner is unknown")
	case stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return fmt.Errorf("it belongs to the user with the id %d, not to root", stat.Uid)
	case info.Mode().Perm()&othersWrite != 0:
		return fmt.Errorf("its group or others can write to it (mode %04o); remove that permission: chmod go-w", info.Mode().Perm())
	}
	return nil
}
