package san

import (
	"context"
	"errors"
	"os"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (s *nodeServer) NodeGetInfo(ctx context.Context, _ *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	resp := &csi.NodeGetInfoResponse{NodeId: s.cfg.Node, MaxVolumesPerNode: s.cfg.MaxVolumes}
	if s.cfg.Topology != nil {
		resp.AccessibleTopology = &csi.Topology{Segments: s.cfg.Topology}
	}
	return resp, s.hello(ctx)
}

func (s *nodeServer) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	resp := &csi.NodeGetCapabilitiesResponse{}
	add := func(has bool, t csi.NodeServiceCapability_RPC_Type) {
		if has {
			resp.Capabilities = append(resp.Capabilities, &csi.NodeServiceCapability{
				Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}}})
		}
	}
	add(s.cfg.Stage, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	add(s.cfg.Expand, csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
	add(s.cfg.MultiWriter, csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	add(true, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS)

	return resp, nil
}

func (s *nodeServer) volume(id string, c *csi.VolumeCapability, publishContext map[string]string) (volume, error) {
	v := volume{id: id, attachment: publishContext[attachmentKey], mode: c.GetAccessMode().GetMode(), block: c.GetBlock() != nil}
	v.readOnly = readerOnly(v.mode) || slices.Contains(c.GetMount().GetMountFlags(), "ro")
	switch {
	case id == "" || c == nil:
		return v, status.Error(codes.InvalidArgument, "the call needs a volume id and a capability")
	case s.cfg.Attach && v.attachment == "":
		return v, status.Error(codes.InvalidArgument, "the publish context names no attachment")
	}
	return v, nil
}

func (s *nodeServer) NodeStageVolume(ctx context.Context, m *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	v, err := s.volume(m.GetVolumeId(), m.GetVolumeCapability(), m.GetPublishContext())
	if err != nil {
		return nil, err
	}

	// A node without ControllerPublish becomes the writer when it publishes the volume for writing.
	if !s.cfg.Attach && v.mode == csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER {
		v.readOnly = true
	}
	if v.block {
		_, err = s.device(ctx, v)
		return &csi.NodeStageVolumeResponse{}, err
	}

	return &csi.NodeStageVolumeResponse{}, s.mount(ctx, v, m.GetStagingTargetPath())
}

func (s *nodeServer) NodeUnstageVolume(ctx context.Context, m *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if m.GetVolumeId() == "" || m.GetStagingTargetPath() == "" {
		return nil, status.Error(codes.InvalidArgument, "unstaging needs a volume id and a path")
	}
	if err := unmountAll(m.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	if err := s.releaseLoops(m.GetVolumeId()); err != nil {
		return nil, err
	}
	return &csi.NodeUnstageVolumeResponse{}, s.release(ctx, m.GetVolumeId(), "")
}

// release tells the SAN that a volume is unmounted. ControllerUnpublish does it if there is one.
func (s *nodeServer) release(ctx context.Context, volume, path string) error {
	if s.cfg.Attach {
		return nil
	}
	_, err := s.ask(ctx, request{Op: opRelease, Volume: volume, Path: path}, nil)
	return err
}

func (s *nodeServer) NodePublishVolume(ctx context.Context, m *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	v, err := s.volume(m.GetVolumeId(), m.GetVolumeCapability(), m.GetPublishContext())
	if err != nil {
		return nil, err
	}

	target := m.GetTargetPath()
	if isMount(target) {
		return &csi.NodePublishVolumeResponse{}, nil
	}
	if !s.cfg.Attach && s.cfg.Stage && !m.GetReadonly() && !v.readOnly {
		if _, err := s.ask(ctx, request{Op: opWriter, Volume: v.id}, nil); err != nil {
			return nil, err
		}
	}

	source := m.GetStagingTargetPath()
	if !s.cfg.Stage || v.block {
		v.readOnly = v.readOnly || m.GetReadonly()
	}
	if v.block {
		if source, err = s.device(ctx, v); err != nil {
			return nil, err
		}
	} else if s.cfg.Stage && !mounted(source, v.source()) {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %q is not staged at %s", v.id, source)
	}

	return &csi.NodePublishVolumeResponse{}, s.publish(ctx, v, source, target, m.GetReadonly())
}

// publish makes the target and mounts the volume there.
func (s *nodeServer) publish(ctx context.Context, v volume, source, target string, readOnly bool) error {
	if err := makeTarget(target, v.block); err != nil {
		return err
	}

	var err error
	if v.block || s.cfg.Stage {
		err = unix.Mount(source, target, "", unix.MS_BIND, "")
	} else {
		err = s.mount(ctx, v, target)
	}
	if err == nil && readOnly {
		err = unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	if err != nil {
		return errors.Join(err, unpublish(target))
	}

	return nil
}

func makeTarget(target string, isFile bool) error {
	if !isFile {
		return os.MkdirAll(target, 0o755)
	}

	f, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}

	return f.Close()
}

func unpublish(target string) error {
	if err := unmountAll(target); err != nil {
		return err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

func (s *nodeServer) NodeUnpublishVolume(ctx context.Context, m *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if m.GetVolumeId() == "" || m.GetTargetPath() == "" {
		return nil, status.Error(codes.InvalidArgument, "unpublishing needs a volume id and a target")
	}

	if err := unpublish(m.GetTargetPath()); err != nil {
		return nil, err
	}
	if s.cfg.Stage {
		return &csi.NodeUnpublishVolumeResponse{}, nil
	}
	if err := s.releaseLoops(m.GetVolumeId()); err != nil {
		return nil, err
	}

	return &csi.NodeUnpublishVolumeResponse{}, s.release(ctx, m.GetVolumeId(), m.GetTargetPath())
}

func (s *nodeServer) NodeGetVolumeStats(_ context.Context, m *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if !isMount(m.GetVolumePath()) {
		return nil, status.Errorf(codes.NotFound, "no volume is mounted at %s", m.GetVolumePath())
	}

	usage := &csi.VolumeUsage{Unit: csi.VolumeUsage_BYTES}
	resp := &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{usage}}
	var st unix.Stat_t
	if err := unix.Stat(m.GetVolumePath(), &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		size, err := deviceSize(m.GetVolumePath())
		usage.Total = size
		return resp, err
	}

	var sys unix.Statfs_t
	if err := unix.Statfs(m.GetVolumePath(), &sys); err != nil {
		return nil, err
	}
	usage.Total, usage.Available = int64(sys.Blocks)*sys.Bsize, int64(sys.Bavail)*sys.Bsize
	usage.Used = usage.Total - usage.Available

	return resp, nil
}

func (s *nodeServer) NodeExpandVolume(ctx context.Context, m *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	a, err := s.ask(ctx, request{Op: opResize, Volume: m.GetVolumeId()}, nil)
	if err != nil {
		return nil, err
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: a.Size}, s.resizeLoops(m.GetVolumeId())
}
