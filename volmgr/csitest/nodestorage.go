package csitest

import (
	"context"
	"io/fs"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NodeExpandVolume changes the size that the node sees to the size of the storage. If the plugin
// has no ControllerExpandVolume, NodeExpandVolume also enlarges the storage.
func (s *node) NodeExpandVolume(ctx context.Context, m *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	id, path := m.GetVolumeId(), m.GetVolumePath()
	if id == "" || path == "" {
		return nil, status.Error(codes.InvalidArgument, "expanding needs a volume id and a path")
	}
	if err := optionsOf(ctx).demands(m.GetStagingTargetPath(), path); err != nil {
		return nil, err
	}
	defer s.p.store.lock(id)()
	v, err := s.p.store.get(id)
	if err != nil {
		return nil, err
	}
	if !isMount(path) && !s.p.rec.staged(id, path) {
		return nil, status.Errorf(codes.NotFound, "volume %q is not at %s", id, path)
	}

	least, most := m.GetCapacityRange().GetRequiredBytes(), s.p.cfg.Storage
	if limit := m.GetCapacityRange().GetLimitBytes(); limit > 0 {
		most = min(most, limit)
	}

	switch {
	case s.p.cfg.Expand && hasController(s.p.cfg):
		most = v.Capacity
	case v.Capacity < least:
		v.Capacity = least
	}

	if least > most {
		return nil, status.Errorf(codes.OutOfRange, "the request needs %d bytes, but the maximum is %d", least, most)
	}

	v.Usable = v.Capacity
	return &csi.NodeExpandVolumeResponse{CapacityBytes: v.Capacity}, s.p.store.grow(v)
}

// NodeGetVolumeStats reports the recorded size of the volume and the space that its files use.
// Without a recorded size, it reports the size and usage of the file system.
func (s *node) NodeGetVolumeStats(_ context.Context, m *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if m.GetVolumeId() == "" || m.GetVolumePath() == "" {
		return nil, status.Error(codes.InvalidArgument, "stats need a volume id and a path")
	}
	if !isMount(m.GetVolumePath()) {
		return nil, status.Errorf(codes.NotFound, "nothing is mounted at %s", m.GetVolumePath())
	}
	defer s.p.store.lock(m.GetVolumeId())()
	v, err := s.p.store.get(m.GetVolumeId())
	if err != nil {
		return nil, err
	}

	resp := &csi.NodeGetVolumeStatsResponse{}
	s.p.addCondition(resp, v.ID, atNode)
	var st unix.Stat_t
	if err := unix.Stat(m.GetVolumePath(), &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		resp.Usage = []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: v.size()}}
		return resp, nil
	}

	var sys unix.Statfs_t
	if err := unix.Statfs(m.GetVolumePath(), &sys); err != nil {
		return nil, err
	}

	bytes := &csi.VolumeUsage{Unit: csi.VolumeUsage_BYTES, Total: int64(sys.Blocks) * sys.Bsize,
		Used: int64(sys.Blocks-sys.Bfree) * sys.Bsize, Available: int64(sys.Bavail) * sys.Bsize}
	if v.Usable > 0 {
		used := used(s.p.store.path(v.ID, "data"))
		bytes.Total, bytes.Used, bytes.Available = v.Usable, used, max(v.Usable-used, 0)
	}

	resp.Usage = []*csi.VolumeUsage{bytes,
		{Unit: csi.VolumeUsage_INODES, Total: int64(sys.Files), Used: int64(sys.Files - sys.Ffree), Available: int64(sys.Ffree)}}
	return resp, nil
}

// used returns the total size, in bytes, of the files in a directory. It ignores files that
// disappear while it counts.
func used(dir string) int64 {
	var sum int64
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return nil //nolint:nilerr // see above
		}
		if info, err := e.Info(); err == nil {
			sum += info.Size()
		}

		return nil
	})

	return sum
}
