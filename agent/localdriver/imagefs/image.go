package imagefs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// MakeImage makes a sparse file and, unless the volume is raw, a filesystem in it. The tools work
// on the file itself, so MakeImage needs no loop device.
func MakeImage(ctx context.Context, dir string, v store.Volume) error {
	path := filepath.Join(dir, store.ImageFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}

	err = f.Truncate(v.Capacity)
	if errors.Is(err, unix.EFBIG) {
		err = csierr.OutOfRangef("an image of %d bytes is more than its filesystem allows for one file", v.Capacity)
	}
	if err == nil && v.FSType != "" {
		err = Format(ctx, v.FSType, path)
	}
	if err == nil {
		err = f.Sync()
	}

	return errors.Join(err, f.Close())
}

// Format makes a filesystem in the file at path.
func Format(ctx context.Context, fsType, path string) error {
	fs, ok := FindFilesystem(fsType)
	if !ok {
		return fmt.Errorf("unknown filesystem type %q", fsType)
	}

	code, out, err := runTool(ctx, fs.Pkg, fs.Mkfs[0], append(fs.Mkfs[1:len(fs.Mkfs):len(fs.Mkfs)], path)...)
	if err != nil {
		return err
	}
	if code != 0 {
		return fmt.Errorf("%s failed with exit code %d: %s", fs.Mkfs[0], code, out)
	}

	return nil
}

// The exit code of e2fsck is a sum of these values (e2fsck(8)). A larger exit code means that
// e2fsck itself failed.
const (
	fsckCorrected = 1
	fsckReboot    = 2
)

// CheckFilesystem checks an unmounted filesystem before it is used, and makes all repairs that are
// safe. It does not check xfs and btrfs, which repair themselves when they are mounted.
func CheckFilesystem(ctx context.Context, fsType, device string) error {
	if fsType != "ext4" {
		return nil
	}

	code, out, err := runTool(ctx, "e2fsprogs", "e2fsck", "-p", device)
	if err != nil {
		return err
	}
	if code&^(fsckCorrected|fsckReboot) != 0 {
		return csierr.Preconditionf("the filesystem on %s needs repair by hand: e2fsck -p exited with %d: %s", device, code, out)
	}

	return nil
}

// ToolDirs lists the directories in which the driver searches for tools after PATH, because the
// PATH of a service often lacks the sbin directories.
var ToolDirs = []string{"/usr/sbin", "/sbin"}

// runTool runs a tool until the tool ends or ctx is done. It returns the exit code and the end of
// the output. It returns an error if the tool could not be started or was killed. The argument pkg
// is the package to install, for the error message.
func runTool(ctx context.Context, pkg, name string, args ...string) (code int, out string, err error) {
	path, err := findTool(name)
	if err != nil {
		return 0, "", csierr.Preconditionf("%s is not installed; install the package %s", name, pkg)
	}

	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.WaitDelay = time.Second
	raw, err := cmd.CombinedOutput()
	out = lastWords(raw)
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return 0, out, fmt.Errorf("%s was interrupted: %w", name, ctx.Err())
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode(), out, nil
	case err != nil:
		return 0, out, fmt.Errorf("cannot run %s: %w: %s", name, err, out)
	}

	return 0, out, nil
}

func findTool(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}

	for _, dir := range ToolDirs {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p, nil
		}
	}

	return "", err
}

// lastWords returns the end of a tool's output on one line, short enough for an error message.
func lastWords(out []byte) string {
	const most = 512
	out = bytes.TrimSpace(out)
	if len(out) > most {
		out = out[len(out)-most:]
	}
	return strings.ToValidUTF8(strings.Join(strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' || r == '\r' }), "; "), "")
}

// RootInode returns the inode number of the root directory of an image's filesystem. It is always 2
// for ext4. For xfs it is in the superblock (sb_rootino, big-endian at byte 56).
func RootInode(fsType, path string) (uint64, error) {
	if fsType != "xfs" {
		return 2, nil
	}

	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}

	var sb [8]byte
	_, err = f.ReadAt(sb[:], 56)
	return binary.BigEndian.Uint64(sb[:]), errors.Join(err, f.Close())
}
