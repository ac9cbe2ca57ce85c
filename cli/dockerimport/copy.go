package dockerimport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/treecopy"
)

// Marker is the name of a directory in the root of a volume. It exists while an import into the volume
// is not finished, and names the source.
const Marker = ".volagent-import"

const (
	sourceFile = "source.json"
	// maxSourceFile is the maximum size of the file in the marker, in bytes.
	maxSourceFile = 64 << 10
)

// origin is the content of the file in the marker.
type origin struct {
	DockerVolume string `json:"docker_volume"`
	Path         string `json:"path"`
}

// Result describes a finished import.
type Result struct {
	Files     int64 // files and directories
	Bytes     int64 // the sizes of the files
	Continued bool  // an earlier import was not finished
}

// CopyTo copies the data of the docker volume to a volume that is mounted at a path, compares both, and
// waits until the copy is on disk. The target must be empty, unless it contains an import of the same
// docker volume that did not finish. Before it copies, CopyTo checks the free space. After a failure,
// the marker stays in the target, so the next run continues.
func (s *Source) CopyTo(ctx context.Context, path string, p *treecopy.Progress) (r Result, err error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()

	if r.Continued, err = s.admit(root); err != nil {
		return r, err
	}

	c, err := s.content(path, p)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, c.From.Close(), c.To.Close()) }()

	if err := s.checkRoom(ctx, c); err != nil {
		return r, err
	}
	if c.Scratch, err = s.mark(root); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, c.Scratch.Close()) }()

	if err := c.Copy(ctx); err != nil {
		return r, copyError(err)
	}

	found, err := c.Compare(ctx)
	if err != nil {
		return r, fmt.Errorf("cannot compare the copy: %w", err)
	}
	if len(found.Differences) > 0 {
		return r, &api.Error{
			Code: api.CodeFailed, Message: "the copy differs:\n" + strings.Join(found.Differences, "\n"),
			Hint: "end everything that writes to " + s.Volume.Path + ", and repeat the import",
		}
	}
	if err := s.checkUsers(ctx); err != nil {
		return r, fmt.Errorf("a container was started during the import, so the copy may be older: %w", err)
	}
	if err := unmark(root, c); err != nil {
		return r, err
	}

	r.Files, r.Bytes = found.Files, found.Bytes
	return r, nil
}

// content opens the directories of the copy.
func (s *Source) content(path string, p *treecopy.Progress) (c treecopy.Content, err error) {
	c = treecopy.Content{Skip: skipped, Progress: p}
	if c.From, err = os.Open(s.Volume.Path); err != nil {
		return c, err
	}
	if c.To, err = os.Open(path); err != nil {
		return c, errors.Join(err, c.From.Close())
	}

	from, err := treecopy.StatOpen(c.From)
	to, toErr := treecopy.StatOpen(c.To)
	same := from.Ino == to.Ino && from.Dev_major == to.Dev_major && from.Dev_minor == to.Dev_minor
	if err = errors.Join(err, toErr); err == nil && same {
		err = refused("", "the docker volume and the target are the same directory")
	}
	if err != nil {
		return c, errors.Join(err, c.From.Close(), c.To.Close())
	}

	return c, nil
}

// admit returns an error if the target contains other data than an unfinished import of this docker
// volume. It reports whether it contains such an import.
func (s *Source) admit(root *os.Root) (continued bool, err error) {
	if _, err := os.Lstat(s.Volume.Path + "/" + Marker); err == nil {
		return false, refused("finish that import first, or remove "+Marker,
			"the docker volume itself contains %s, so an import into it did not finish", Marker)
	}

	was, err := readMarker(root)
	switch {
	case err == nil && was.DockerVolume == s.Volume.Name:
		return true, nil
	case err == nil && was.DockerVolume != "":
		return false, refused("", "it contains an unfinished import of docker volume %q", was.DockerVolume)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return false, fmt.Errorf("cannot read %s in the volume: %w", Marker, err)
	}

	names, err := entries(root)
	if err != nil {
		return false, fmt.Errorf("cannot read the root of the volume: %w", err)
	}
	if len(names) > 0 {
		return false, refused("use an empty volume", "the volume is not empty: it contains %s", shown(names))
	}

	return false, nil
}

// shown quotes the first names of a list.
func shown(names []string) string {
	const most = 3
	var all []string
	for _, name := range names[:min(most, len(names))] {
		all = append(all, fmt.Sprintf("%q", name))
	}
	if len(names) > most {
		all = append(all, fmt.Sprintf("and %d more", len(names)-most))
	}
	return strings.Join(all, ", ")
}

// readMarker returns the origin in the marker. The marker may lack its file, because the host may have
// died before it was written. The error then wraps fs.ErrNotExist, and no data was copied yet.
func readMarker(root *os.Root) (o origin, err error) {
	f, err := root.Open(Marker + "/" + sourceFile)
	if err != nil {
		return o, err
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxSourceFile))
	if err = errors.Join(err, f.Close()); err != nil {
		return o, err
	}
	if json.Unmarshal(raw, &o) != nil {
		return origin{}, nil //nolint:nilerr // the host died while the file was written
	}
	return o, nil
}

// mark makes the marker, waits until it is on disk, and opens it.
func (s *Source) mark(root *os.Root) (*os.File, error) {
	err := root.Mkdir(Marker, 0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}

	raw, err := json.Marshal(origin{s.Volume.Name, s.Volume.Path})
	if err != nil {
		return nil, err
	}
	f, err := root.OpenFile(Marker+"/"+sourceFile, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(raw)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, err
	}

	dir, err := root.Open(Marker)
	if err != nil {
		return nil, err
	}
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return nil, errors.Join(err, dir.Close())
	}

	return dir, nil
}

// unmark removes the marker after the copy is verified, and waits until that is on disk. The removal
// changes the times of the root, so unmark sets them again.
func unmark(root *os.Root, c treecopy.Content) error {
	if err := errors.Join(root.Remove(Marker+"/"+sourceFile), root.Remove(Marker)); err != nil {
		return fmt.Errorf("the copy is complete, but its marker remains: %w", err)
	}

	info, err := c.From.Stat()
	if err != nil {
		return err
	}
	if err := root.Chtimes(".", info.ModTime(), info.ModTime()); err != nil {
		return err
	}
	return unix.Syncfs(int(c.To.Fd()))
}

// checkRoom returns an error if the rest of the copy does not fit into the target.
func (s *Source) checkRoom(ctx context.Context, c treecopy.Content) error {
	need, err := treecopy.Measure(ctx, c.From, skipped)
	if err != nil {
		return fmt.Errorf("cannot measure it: %w", err)
	}
	have, err := treecopy.Measure(ctx, c.To, skipped)
	if err != nil {
		return fmt.Errorf("cannot measure the target: %w", err)
	}

	c.Progress.Total.Store(2 * need.Bytes) // copied, and then compared
	err = errors.Join(treecopy.Room(c.To, need.Bytes-have.Bytes), treecopy.RoomForFiles(c.To, need.Files-have.Files))
	if err == nil {
		return nil
	}
	return tooSmall(err)
}

// copyError adds to the error of a copy what to do about it.
func copyError(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return tooSmall(err)
	}
	return fmt.Errorf("cannot copy the data: %w", err)
}

func tooSmall(err error) error {
	return &api.Error{Code: api.CodeRefused, Message: "the target is too small: " + err.Error(), Hint: "expand the volume, and repeat the import"}
}
