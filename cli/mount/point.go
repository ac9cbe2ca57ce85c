package mount

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/suggest"
)

// point is the mount point of a volume: a directory, or a file for a block device.
type point struct {
	path string

	// file is the mount point, opened with O_PATH. If something is mounted at the path, file refers
	// to the root of the mount.
	file *os.File

	// above lists the existing mounts at the path, with the topmost last.
	above []mounted

	// onDemand is set if an autofs is mounted at the path. A program has then triggered an
	// automatic mount, and volctl makes this mount. The contents of the directory are not checked,
	// because reading them would wait for the mount.
	onDemand bool
}

// close closes the file. It ignores errors, because nothing was written to the file.
func (p *point) close() { _ = p.file.Close() }

// refusedPoint returns an error about the mount point.
func refusedPoint(code api.Code, hint, format string, args ...any) error {
	return &api.Error{Code: code, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// openPoint opens a mount point. It refuses a path with a symbolic link. It uses O_PATH, which
// cannot hang, because O_PATH neither reads the mounted file system nor triggers an autofs.
func openPoint(path string, table []mounted) (*point, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	switch {
	case err == nil:
		return &point{path: path, file: os.NewFile(uintptr(fd), path), above: at(table, path), onDemand: autofsAt(table, path)}, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, refusedPoint(api.CodeNotFound, suggest.Command("mkdir -p %s", path), "there is no %s", path)
	case errors.Is(err, unix.ELOOP):
		end, linkErr := filepath.EvalSymlinks(path)
		if linkErr != nil {
			return nil, refusedPoint(api.CodeInvalid, "", "a symbolic link on the way leads nowhere: %v", linkErr)
		}
		return nil, refusedPoint(api.CodeInvalid, "name "+end+" instead", "a symbolic link on the way leads to %s", end)
	case errors.Is(err, unix.ENOTDIR):
		return nil, refusedPoint(api.CodeInvalid, "", "a part of it is not a directory")
	case errors.Is(err, fs.ErrPermission):
		return nil, refusedPoint(api.CodePermission, "", "no permission to reach it")
	}

	return nil, refusedPoint(api.CodeFailed, "", "it cannot be opened: %v", err)
}

// fits checks that the mount point is a file if the request is for a block device, and a directory
// if it is for a file system. If the request has no attachment mode, the agent does this check.
func (p *point) fits(attachmentMode string) error {
	dir, err := p.isDir()
	switch {
	case err != nil:
		return err
	case attachmentMode == blockDevice && dir:
		return refusedPoint(api.CodeInvalid, "a block device needs a file as mount point; make one with touch", "it is a directory")
	case attachmentMode == fileSystem && !dir:
		return refusedPoint(api.CodeInvalid, "name a directory; a file is for attachment_mode="+blockDevice, "it is not a directory")
	}

	return nil
}

func (p *point) isDir() (bool, error) {
	info, err := p.file.Stat()
	if err != nil {
		return false, refusedPoint(api.CodeFailed, "", "it cannot be examined: %v", err)
	}
	return info.IsDir(), nil
}

// empty returns an error if the directory contains any files, because the mount would hide them.
func (p *point) empty() error {
	if dir, err := p.isDir(); p.onDemand || err != nil || !dir {
		return err
	}

	fd, err := unix.Openat(int(p.file.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return refusedPoint(api.CodeFailed, "", "it cannot be read: %v", err)
	}

	dir := os.NewFile(uintptr(fd), p.path)
	defer func() { _ = dir.Close() }() // the directory was only read

	names, err := dir.Readdirnames(1)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return refusedPoint(api.CodeFailed, "", "it cannot be read: %v", err)
	}

	return refusedPoint(api.CodeRefused, "move it elsewhere, or mount over it with the option nonempty",
		"it is not empty, and the mount would hide its content: %q", names[0])
}
