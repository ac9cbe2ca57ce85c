package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/suggest"
	"golang.org/x/sys/unix"
)

// mountPoint is the directory, or for a block device the file, that a volume is to be
// mounted at.
type mountPoint struct {
	path string
	// file is open on it by O_PATH; on what is mounted there, if something is.
	file *os.File
	// above is what is mounted there already, the one on top last.
	above []mounted
	// onDemand is an autofs: it is of no matter what a look into it would show, and
	// whoever looks waits for the mount that is being made.
	onDemand bool
}

// close has nothing to lose: nothing was written.
func (p *mountPoint) close() { _ = p.file.Close() }

// refusedPoint is the error for a mount point that cannot be used.
func refusedPoint(code api.Code, hint, format string, args ...any) error {
	return &api.Error{Code: code, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// openPoint finds a mount point that has no link on its way. Nothing that hangs is
// touched: not what is mounted there, nor by the open(2) of an autofs.
func openPoint(path string, table []mounted) (*mountPoint, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	switch {
	case err == nil:
		return &mountPoint{path: path, file: os.NewFile(uintptr(fd), path), above: at(table, path), onDemand: autofsAt(table, path)}, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, refusedPoint(api.CodeNotFound, suggest.Command("mkdir -p %s", path), "there is no %s", path)
	case errors.Is(err, unix.ELOOP):
		end, linkErr := filepath.EvalSymlinks(path)
		if linkErr != nil {
			return nil, refusedPoint(api.CodeInvalid, "", "a symbolic link on the way leads nowhere: %v", linkErr)
		}
		return nil, refusedPoint(api.CodeInvalid, "name "+end+" instead", "a symbolic link on the way leads to %s", end)
	case errors.Is(err, unix.ENOTDIR):
		return nil, refusedPoint(api.CodeInvalid, "", "a part of it is no directory")
	case errors.Is(err, fs.ErrPermission):
		return nil, refusedPoint(api.CodePermission, "", "no permission to reach it")
	}
	return nil, refusedPoint(api.CodeFailed, "", "it cannot be opened: %v", err)
}

// fits checks that what is there is of the kind that is mounted over; with no mode, the
// agent knows better.
func (p *mountPoint) fits(attachmentMode string) error {
	dir, err := p.isDir()
	switch {
	case err != nil:
		return err
	case attachmentMode == blockDevice && dir:
		return refusedPoint(api.CodeInvalid, "a block device is mounted over a file: name one that is there, made by touch", "it is a directory")
	case attachmentMode == fileSystem && !dir:
		return refusedPoint(api.CodeInvalid, "name a directory; a file is for attachment_mode="+blockDevice, "it is no directory")
	}
	return nil
}

func (p *mountPoint) isDir() (bool, error) {
	info, err := p.file.Stat()
	if err != nil {
		return false, refusedPoint(api.CodeFailed, "", "it cannot be looked at: %v", err)
	}
	return info.IsDir(), nil
}

// empty refuses a directory with something in it, which the mount would hide.
func (p *mountPoint) empty() error {
	if dir, err := p.isDir(); p.onDemand || err != nil || !dir {
		return err
	}
	fd, err := unix.Openat(int(p.file.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return refusedPoint(api.CodeFailed, "", "it cannot be read: %v", err)
	}
	dir := os.NewFile(uintptr(fd), p.path)
	defer func() { _ = dir.Close() }() // nothing was written
	names, err := dir.Readdirnames(1)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return refusedPoint(api.CodeFailed, "", "it cannot be read: %v", err)
	}
	return refusedPoint(api.CodeRefused, "move it elsewhere, or mount over it with the option nonempty",
		"it is not empty, and what is in it would be hidden: %q", names[0])
}
