package command

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/volagent/volagent/agent/api"
)

// NewFile is a file that does not exist yet.
type NewFile struct {
	Name string // without a directory
	Text []byte
}

// WriteAll writes new files into a directory: all of them, or none. Each appears with its complete
// text, and mode 0644. WriteAll never overwrites a file.
func WriteAll(dir string, files []NewFile) (err error) {
	var made []string
	defer func() {
		if err != nil {
			err = errors.Join(err, removeAll(made))
		}
	}()

	// A name that begins with a dot is not that of a plugin file, so the agent ignores the
	// temporary files.
	var temporary []string
	defer func() {
		if failed := removeAll(temporary); err == nil {
			err = failed
		}
	}()
	for _, f := range files {
		name, err := writeTemporary(dir, f)
		if name != "" {
			temporary = append(temporary, name)
		}
		if err != nil {
			return short(err, dir)
		}
	}

	for i, f := range files {
		path := filepath.Join(dir, f.Name)
		err := os.Link(temporary[i], path) // unlike a rename, it fails if the file exists
		if errors.Is(err, fs.ErrExist) {
			return &api.Error{Code: api.CodeRefused, Message: fmt.Sprintf("%s exists; nothing was written", path)}
		}
		if err != nil {
			return short(err, path)
		}
		made = append(made, path)
	}

	return nil
}

// writeTemporary writes the text of a file to a temporary file on disk. If the temporary file
// remains, it returns its path even after an error.
func writeTemporary(dir string, f NewFile) (path string, err error) {
	file, err := os.CreateTemp(dir, "."+f.Name+".*")
	if err != nil {
		return "", err
	}

	_, err = file.Write(f.Text)
	if err == nil {
		err = file.Chmod(0o644)
	}
	if err == nil {
		err = file.Sync()
	}

	return file.Name(), errors.Join(err, file.Close())
}

func removeAll(paths []string) (err error) {
	for _, path := range paths {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// short returns an error with the path that the user knows, in place of that of a temporary file.
func short(err error, path string) error {
	var at *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &at):
		err = at.Err
	case errors.As(err, &link):
		err = link.Err
	}

	return Failed(err, "write %q", path)
}
