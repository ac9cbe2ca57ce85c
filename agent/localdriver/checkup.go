package localdriver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/health"
	"github.com/volagent/volagent/agent/localdriver/imagefs"
	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/agent/localdriver/store"
	"github.com/volagent/volagent/agent/localdriver/usage"
)

// ControllerGetVolumeHealth returns the health problems of a volume. The driver serves only one
// node, so its controller reports the same problems as its node service.
func (d *driver) ControllerGetVolumeHealth(_ context.Context, req *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	h, err := d.health(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: h}, nil
}

// ControllerListVolumeHealth returns one page of the volumes that have health problems. The pages
// are in the order of ids, as in ListVolumes.
func (d *driver) ControllerListVolumeHealth(ctx context.Context, req *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	if req.GetMaxEntries() < 0 {
		return nil, csierr.Invalidf("max_entries is %d", req.GetMaxEntries())
	}

	after := req.GetStartingToken()
	if after != "" && !store.ValidID(after) {
		return nil, csierr.Errorf(codes.Aborted, "the starting token %q is not one of ours; start again without", after)
	}

	look, err := loopdev.LookAround()
	if err != nil {
		return nil, err
	}

	resp := &csi.ControllerListVolumeHealthResponse{}
	for _, id := range d.store.IDs() {
		if id <= after {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}

		s, err := d.examine(look, id)
		if errors.Is(err, store.ErrNoVolume) || errors.Is(err, errBusy) {
			continue // another call has deleted the volume, or is using it
		}
		if err != nil {
			return nil, err
		}

		h := health.Diagnose(id, s)
		if len(h.GetHealthStatuses()) == 0 {
			continue
		}
		if n := int(req.GetMaxEntries()); n > 0 && len(resp.Entries) == n {
			resp.NextToken = resp.Entries[n-1].GetVolumeId()
			break
		}

		resp.Entries = append(resp.Entries, h)
	}

	return resp, nil
}

// NodeGetVolumeHealth returns the health problems of a volume and of its mounts at the given paths.
func (d *driver) NodeGetVolumeHealth(_ context.Context, req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	h, err := d.health(req.GetVolumeId(), req.GetStagingTargetPath(), req.GetVolumePublishPath())
	if err != nil {
		return nil, err
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: h}, nil
}

// NodeGetStorageHealth returns the health problems of the filesystem that holds the volumes.
func (d *driver) NodeGetStorageHealth(context.Context, *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	return &csi.NodeGetStorageHealthResponse{BackendHealth: health.DiagnoseStorage(d.examineStorage())}, nil
}

func (d *driver) health(id string, paths ...string) (*csi.VolumeHealth, error) {
	if id == "" {
		return nil, csierr.Invalidf("the volume id is empty")
	}

	look, err := loopdev.LookAround()
	if err != nil {
		return nil, err
	}

	s, err := d.examine(look, id, paths...)
	if errors.Is(err, store.ErrNoVolume) {
		return nil, csierr.Errorf(codes.NotFound, "no volume %q", id)
	}
	if err != nil {
		return nil, err
	}

	return health.Diagnose(id, s), nil
}

// errBusy is returned for a volume on which another call is working.
var errBusy = csierr.Errorf(codes.Aborted, "another operation on the volume is running")

// examine inspects a volume without blocking other calls. If another call is deleting the volume,
// its data seems to be missing. Therefore, if data seems to be missing, examine locks the volume
// and inspects it again.
func (d *driver) examine(look loopdev.Surroundings, id string, paths ...string) (health.Symptoms, error) {
	s, err := d.inspect(look, id, paths)
	if err != nil || !s.Missing {
		return s, err
	}

	unlock, ok := d.locks.Try(id)
	if !ok {
		return s, errBusy
	}
	defer unlock()
	return d.inspect(look, id, paths)
}

func (d *driver) inspect(look loopdev.Surroundings, id string, paths []string) (health.Symptoms, error) {
	if why := d.store.Unusable(id); why != "" {
		return health.Symptoms{Metadata: why}, nil
	}

	v, err := d.store.Get(id)
	if err != nil {
		return health.Symptoms{}, err
	}

	s := health.Symptoms{Kind: v.Type}
	data, err := mounts.StatPath(d.store.DataPath(v))
	if err != nil {
		return s, err
	}

	if v.Type == store.TypeDirectory {
		s.Missing = !data.IsDir()
		if err := d.quotaTrouble(v); err != nil {
			s.Quota = err.Error()
		}
	} else {
		s.Missing, s.Recorded, s.Actual = !data.IsRegular(), v.Capacity, int64(data.Size)
	}

	if s.Missing {
		return s, nil
	}

	var loops []loopdev.LoopDevice
	for _, name := range look.Loops[id] {
		l, err := loopdev.InspectLoop(name, loopdev.ImageRef{Path: d.store.DataPath(v), Dev: data.Dev, Ino: data.Ino})
		if err == nil && l != nil && l.Usable() {
			loops = append(loops, *l)
			inspectFilesystem(&s, v, *l, look.Mounts)
		}
	}

	return s, d.inspectPaths(&s, v, loops, paths)
}

// inspectFilesystem inspects the mounts of the filesystem on a device.
func inspectFilesystem(s *health.Symptoms, v store.Volume, l loopdev.LoopDevice, table []mounts.MountEntry) {
	i := slices.IndexFunc(table, l.Holds)
	if i < 0 {
		return
	}

	e := table[i]
	options := strings.Split(e.Options, ",")
	// If the volume is mounted read-only on purpose, each of its mounts is read-only. So if the
	// filesystem is read-only but a mount is writable, the filesystem has a problem.
	s.ReadOnly = slices.Contains(options, "emergency_ro") ||
		slices.Contains(options, "ro") && slices.ContainsFunc(table, func(m mounts.MountEntry) bool { return l.Holds(m) && !m.ReadOnly })
	if slices.Contains(options, "shutdown") {
		s.Dead = "it says shutdown"
	}

	if v.FSType == "ext4" {
		s.Errors = ext4Errors(l.Name)
		// After an error, older kernels show an ext4 as writable although it refuses every write.
		// So try to write.
		if s.Errors > 0 && !slices.Contains(options, "ro") {
			s.ReadOnly = s.ReadOnly || refusesWrites(e.Point)
		}
	}

	// An xfs that has shut down cannot be opened, and the mount table does not show its state.
	fd, err := unix.Open(e.Point, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EIO) {
		s.Dead = err.Error()
	}
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()

	if have, want, err := imagefs.Sizes(l.Path(), fd, v.FSType); err == nil {
		s.Filesystem, s.Device = have, want
	}
}

// refusesWrites tries to write to a filesystem. It creates an unnamed file, which disappears when
// it is closed.
func refusesWrites(point string) bool {
	root, err := mounts.OpenWritable(point)
	if err != nil {
		return false
	}
	// Closing a directory cannot lose data.
	defer func() { _ = unix.Close(root) }()

	fd, err := unix.Openat(root, ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err == nil {
		_ = unix.Close(fd) // nothing was written to the file
	}

	return errors.Is(err, unix.EROFS)
}

// ext4Errors returns the number of errors that the kernel has recorded in the filesystem since its
// last check.
func ext4Errors(loop string) int64 {
	raw, err := os.ReadFile(filepath.Join("/sys/fs/ext4", loop, "errors_count"))
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// inspectPaths checks that the volume is mounted at the paths that the caller uses.
func (d *driver) inspectPaths(s *health.Symptoms, v store.Volume, loops []loopdev.LoopDevice, paths []string) error {
	for i, p := range paths {
		if p == "" {
			continue
		}

		p, err := usage.CheckPath(d.store, "volume path", p)
		if err != nil {
			return err
		}

		at, err := usage.LookAt(d.store, v, loops, p)
		switch {
		case err != nil:
			return err
		case at.Dead != nil && at.Kind == usage.KindOurs:
			s.Dead = at.Dead.Error()
		case at.Kind == usage.KindForeign:
			s.Foreign = p
		// A raw block volume has no mount at its staging path.
		case at.Kind == usage.KindNone && (i > 0 || !v.Block):
			s.Unmounted = p
		}
	}

	return nil
}

// examineStorage measures the filesystem that holds the volumes.
func (d *driver) examineStorage() health.Storage {
	var fs unix.Statfs_t
	err := unix.Statfs(d.store.Path(store.DirVolumes), &fs)
	if err != nil {
		return health.Storage{Gone: fmt.Sprintf("cannot use the state directory %q: %v", d.store.Root, err)}
	}

	s := health.Storage{
		ReadOnly: fs.Flags&mounts.StatfsReadOnly != 0,
		Free:     int64(fs.Bavail) * fs.Frsize, Total: int64(fs.Blocks) * fs.Frsize,
		InodesFree: fs.Ffree, Inodes: fs.Files,
	}
	for _, v := range d.store.List() {
		var st unix.Stat_t
		if v.Type == store.TypeImage && unix.Stat(d.store.DataPath(v), &st) == nil {
			s.Promised += max(0, v.Capacity-st.Blocks*512)
		}
	}

	return s
}
