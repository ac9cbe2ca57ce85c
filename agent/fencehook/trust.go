package fencehook

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxLinks is the maximum number of symbolic links in a path.
const maxLinks = 20

// These bits of a mode let other users than the owner write or read a file.
const (
	othersWrite = 0o022
	othersRead  = 0o044
	anyExecute  = 0o111
)

// trust decides which files the package uses. Only root can have changed such a file, or a directory
// or symbolic link that leads to it.
type trust struct {
	uid uint32 // a user that is as good as root; only tests set it
}

// directory returns the real path of a directory.
func (t trust) directory(path string) (string, error) {
	actual, info, err := t.follow(path)
	switch {
	case err != nil:
		return "", err
	case !info.IsDir():
		return "", fmt.Errorf("%s is not a directory", path)
	case info.Mode().Perm()&othersWrite != 0:
		return "", writable(actual, info)
	default:
		return actual, nil
	}
}

// executable returns the real path of an executable.
func (t trust) executable(path string) (string, error) {
	actual, info, err := t.file(path)
	switch {
	case err != nil:
		return "", err
	case info.Mode().Perm()&anyExecute == 0:
		return "", fmt.Errorf("%s is not executable (mode %04o)", path, info.Mode().Perm())
	default:
		return actual, nil
	}
}

// private returns the real path of a file that only root can read.
func (t trust) private(path string) (string, error) {
	actual, info, err := t.file(path)
	switch {
	case err != nil:
		return "", err
	case info.Mode().Perm()&othersRead != 0:
		return "", fmt.Errorf("other users can read %s (mode %04o); set its mode to 0600", path, info.Mode().Perm())
	default:
		return actual, nil
	}
}

// file returns the real path of a regular file.
func (t trust) file(path string) (string, fs.FileInfo, error) {
	actual, info, err := t.follow(path)
	switch {
	case err != nil:
		return "", nil, err
	case !info.Mode().IsRegular():
		return "", nil, fmt.Errorf("%s is not a regular file", path)
	case info.Mode().Perm()&othersWrite != 0:
		return "", nil, writable(actual, info)
	default:
		return actual, info, nil
	}
}

func writable(path string, info fs.FileInfo) error {
	return fmt.Errorf("other users can write to %s (mode %04o); remove the write permission of its group and of others", path, info.Mode().Perm())
}

// follow returns the path without symbolic links. It checks each directory and each link on the way.
func (t trust) follow(path string) (string, fs.FileInfo, error) {
	if !filepath.IsAbs(path) {
		return "", nil, fmt.Errorf("%s is not an absolute path", path)
	}

	path = filepath.Clean(path)
	for range maxLinks {
		next, info, err := t.walk(path)
		if err != nil || info != nil {
			return path, info, err
		}
		path = next
	}
	return "", nil, fmt.Errorf("%s: too many symbolic links", path)
}

// walk checks a path component by component. At the first symbolic link, it returns the path in which
// the link is replaced by its target. Otherwise it returns the properties of the file.
func (t trust) walk(path string) (string, fs.FileInfo, error) {
	info, err := t.look("/")
	if err != nil || path == "/" {
		return path, info, err
	}

	at, names := "/", strings.Split(path[1:], "/")
	for i, name := range names {
		if info.IsDir() && info.Mode().Perm()&othersWrite != 0 && info.Mode()&fs.ModeSticky == 0 {
			return "", nil, writable(at, info)
		}

		at = filepath.Join(at, name)
		info, err = t.look(at)
		if err != nil {
			return "", nil, err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			continue
		}

		target, err := os.Readlink(at)
		if err != nil {
			return "", nil, err
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(at), target)
		}
		return filepath.Join(target, filepath.Join(names[i+1:]...)), nil, nil
	}

	return path, info, nil
}

// look returns the properties of a file. It fails if another user than root owns the file.
func (t trust) look(path string) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, errors.New("the owner of " + path + " is unknown")
	}
	if stat.Uid != 0 && stat.Uid != t.uid {
		return nil, fmt.Errorf("%s belongs to the user with the id %d, not to root", path, stat.Uid)
	}
	return info, nil
}
