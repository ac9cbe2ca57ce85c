package localdriver

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/usage"
)

// NodeGetVolumeStats reports the bytes and inodes of a mounted volume, or the size of a block
// device. A directory volume without a quota shares its filesystem with other volumes, so its
// numbers describe the whole filesystem.
func (d *driver) NodeGetVolumeStats(_ context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if req.GetVolumeId() == "" || req.GetVolumePath() == "" {
		return nil, csierr.Invalidf("the volume id and the volume path must be given")
	}

	v, err := d.volume(req.GetVolumeId())
	if err != nil {
		return nil, err
	}

	notThere := csierr.Errorf(codes.NotFound, "volume %q is not mounted at %q", v.ID, req.GetVolumePath())
	path, err := usage.CheckPath(d.store, "volume path", req.GetVolumePath())
	if err != nil {
		return nil, notThere
	}

	t := &target{d: d, v: v, path: path}
	if err := t.readLoops(); err != nil {
		return nil, err
	}

	at, err := t.look(path)
	if err != nil {
		return nil, err
	}

	switch at.Kind {
	case usage.KindOurs:
		resp, err := mountStats(path)
		if err == nil {
			d.quotaStats(v, resp)
		}
		return resp, err
	case usage.KindNode:
		size, err := loopdev.BlockSize(path)
		if err != nil {
			return nil, err
		}
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
			{Unit: csi.VolumeUsage_BYTES, Total: size},
		}}, nil
	default:
		return nil, notThere
	}
}

func mountStats(path string) (*csi.NodeGetVolumeStatsResponse, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return nil, fmt.Errorf("cannot measure the volume at %q: %w", path, err)
	}

	resp := &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{
		Unit:      csi.VolumeUsage_BYTES,
		Total:     int64(fs.Blocks) * fs.Frsize,
		Available: int64(fs.Bavail) * fs.Frsize,
		Used:      int64(fs.Blocks-fs.Bfree) * fs.Frsize,
	}}}
	if fs.Files > 0 { // a btrfs has no fixed number of inodes, and reports 0
		resp.Usage = append(resp.Usage, &csi.VolumeUsage{
			Unit:      csi.VolumeUsage_INODES,
			Total:     int64(fs.Files),
			Available: int64(fs.Ffree),
			Used:      int64(fs.Files - fs.Ffree),
		})
	}

	return resp, nil
}
