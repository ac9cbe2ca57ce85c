package san

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// openFuse opens a FUSE device in blocking mode, as the server of the SAN needs it.
func openFuse() (*os.File, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open /dev/fuse: %w", err)
	}
	return os.NewFile(uintptr(fd), "/dev/fuse"), nil
}

func dup(f *os.File) (int, error) {
	return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
}

// mount mounts the files of a volume at path, and lets the SAN serve them. A mount of the same
// attachment that answers is sufficient.
func (s *nodeServer) mount(ctx context.Context, v volume, path string) error {
	if isMount(path) {
		var sys unix.Statfs_t
		err := unix.Statfs(path, &sys)
		switch {
		case errors.Is(err, unix.ENOTCONN): // a driver was killed before it sent the device
			if err := unmountAll(path); err != nil {
				return err
			}
		case err != nil:
			return status.Errorf(codes.Internal, "the mount at %s fails: %v", path, err)
		case mounted(path, v.source()):
			return nil
		default:
			return status.Errorf(codes.Internal, "another volume or attachment is mounted at %s", path)
		}
	}

	dev, err := openFuse()
	if err != nil {
		return err
	}
	defer dev.Close() //nolint:errcheck // the SAN has a descriptor of its own

	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions", dev.Fd())
	if err := unix.Mount(v.source(), path, "fuse.san", flags, data); err != nil {
		return fmt.Errorf("cannot mount FUSE at %s: %w", path, err)
	}
	if err := s.serve(ctx, v, path, dev); err != nil {
		return errors.Join(err, unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
	}

	return nil
}

// serve asks the SAN to serve a FUSE device.
func (s *nodeServer) serve(ctx context.Context, v volume, path string, dev *os.File) error {
	_, err := s.ask(ctx, request{Op: opServe, Volume: v.id, Attachment: v.attachment, Mode: v.mode, ReadOnly: v.readOnly,
		Block: v.block, Path: path}, dev)
	return err
}

// isMount reports whether path is a mount point. It does not ask the file system that is mounted.
func isMount(path string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
	if err != nil {
		return !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR)
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// mounted reports whether the uppermost mount at path has the given source.
func mounted(path, source string) bool {
	found := false
	eachMount(func(_, point, from string) {
		if point == path {
			found = from == source
		}
	})
	return found
}

// isBound reports whether the node of a device is bind-mounted in this mount namespace.
func isBound(device string) bool {
	found := false
	eachMount(func(root, _, _ string) { found = found || root == "/"+device })
	return found
}

// eachMount calls visit for each mount in this mount namespace, from the bottom up. A root is the
// path of the mounted file or directory in its file system.
func eachMount(visit func(root, point, source string)) {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return
	}

	lines := bufio.NewScanner(bytes.NewReader(raw))
	for lines.Scan() {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		mount, kind := strings.Fields(before), strings.Fields(after)
		if len(mount) > 4 && len(kind) > 1 {
			visit(unescape(mount[3]), unescape(mount[4]), unescape(kind[1]))
		}
	}
}

// unescape returns a field of mountinfo without its octal escapes.
func unescape(field string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#").Replace(field)
}

// unmountAll unmounts every mount at path.
func unmountAll(path string) error {
	for isMount(path) {
		if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("cannot unmount %s: %w", path, err)
		}
	}
	return nil
}
