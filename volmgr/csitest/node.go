package csitest

import (
	"context"
	"errors"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type node struct {
	csi.UnimplementedNodeServer
	p *Plugin
}

func (s *node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	now := Node{ID: s.p.cfg.NodeID, MaxVolumes: s.p.cfg.MaxVolumes, Topology: s.p.cfg.Topology}
	file, err := s.p.cfg.Faults().read()
	if err != nil {
		return nil, err
	}
	if file.Node != nil {
		now = *file.Node
	}

	resp := &csi.NodeGetInfoResponse{NodeId: now.ID, MaxVolumesPerNode: now.MaxVolumes}
	if now.Topology != nil {
		resp.AccessibleTopology = &csi.Topology{Segments: now.Topology}
	}

	return resp, nil
}

// NodeStageVolume bind-mounts the volume's files at the staging path. For a block volume, it mounts
// nothing. It does not fail if the caller omitted an earlier step such as ControllerPublish,
// because the rules check the order of the steps.
func (s *node) NodeStageVolume(ctx context.Context, m *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	id, path := m.GetVolumeId(), m.GetStagingTargetPath()
	if path == "" || m.GetVolumeCapability() == nil {
		return nil, status.Error(codes.InvalidArgument, "staging needs a path and a capability")
	}
	defer s.p.store.lock(id)()
	if _, err := s.p.store.get(id); err != nil {
		return nil, err
	}

	resp := &csi.NodeStageVolumeResponse{}
	if err := optionsOf(ctx).demands(path, ""); err != nil {
		return nil, err
	}
	if m.GetVolumeCapability().GetBlock() != nil || isMount(path) {
		return resp, nil
	}
	if optionsOf(ctx).twist == Remade {
		if err := remade(path); err != nil {
			return nil, err
		}
	}

	if done, err := s.p.mountTwisted(ctx, path); done {
		return resp, err
	}
	if s.p.cfg.isImage(id) {
		return resp, s.p.store.mountImage(id, path)
	}
	if s.p.cfg.Fuse {
		return resp, mountLoopback(s.p.store.path(id, "data"), path)
	}

	return resp, bind(s.p.store.path(id, "data"), path)
}

func (s *node) NodeUnstageVolume(ctx context.Context, m *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if m.GetVolumeId() == "" || m.GetStagingTargetPath() == "" {
		return nil, status.Error(codes.InvalidArgument, "unstaging needs a volume id and a path")
	}

	o, path := optionsOf(ctx), m.GetStagingTargetPath()
	defer s.p.store.lock(m.GetVolumeId())()

	s.p.notInUse(o.call)
	if err := o.demands(path, ""); err != nil {
		return nil, err
	}
	if o.twist == Severs {
		if err := sever(s.p.rec.targets(m.GetVolumeId())); err != nil {
			return nil, err
		}
	}

	err := unmountAll(path)
	if !s.p.cfg.Attach {
		err = errors.Join(err, s.p.store.release(m.GetVolumeId()))
	}
	if err == nil && o.twist == Remade {
		err = os.Remove(path)
	}

	return &csi.NodeUnstageVolumeResponse{}, err
}

// NodePublishVolume bind-mounts the staging path at the target, even if the staging path is not a
// mount point. A volume that was never staged therefore appears as an empty directory.
func (s *node) NodePublishVolume(ctx context.Context, m *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	id, target := m.GetVolumeId(), m.GetTargetPath()
	if target == "" || m.GetVolumeCapability() == nil || (s.p.cfg.Stage && m.GetStagingTargetPath() == "") {
		return nil, status.Error(codes.InvalidArgument, "publishing needs a target, a capability and, if there is staging, its path")
	}
	defer s.p.store.lock(id)()
	if _, err := s.p.store.get(id); err != nil {
		return nil, err
	}

	o := optionsOf(ctx)
	if err := o.demands(m.GetStagingTargetPath(), target); err != nil {
		return nil, err
	}
	if o.twist == Locked {
		return &csi.NodePublishVolumeResponse{}, os.Mkdir(target, 0)
	}

	source, isBlock := m.GetStagingTargetPath(), m.GetVolumeCapability().GetBlock() != nil
	readOnly := m.GetReadonly() && !o.ignoreReadOnly

	switch {
	case isBlock && s.p.cfg.LoopDevices:
		var err error
		if source, err = s.p.store.device(id, readOnly); err != nil {
			return nil, err
		}
	case isBlock:
		var err error
		if source, err = s.p.store.block(id); err != nil {
			return nil, err
		}
	case !s.p.cfg.Stage || o.twist == Direct:
		source = s.p.store.path(id, "data")
	}

	place := func() error {
		if done, err := s.p.mountTwisted(ctx, target); done {
			return err
		}

		return bind(source, target)
	}

	return &csi.NodePublishVolumeResponse{}, publish(place, target, isBlock, readOnly)
}

// publish creates a target and mounts the volume there with the function place. If the mount fails,
// publish removes the target again.
func publish(place func() error, target string, isFile, readOnly bool) error {
	if !isMount(target) {
		if err := makeTarget(target, isFile); err != nil {
			return err
		}
		if err := place(); err != nil {
			return errors.Join(err, os.Remove(target))
		}
	}

	if !readOnly {
		return nil
	}
	if err := makeReadOnly(target); err != nil {
		return errors.Join(err, unpublish(target))
	}

	return nil
}

func makeTarget(target string, isFile bool) error {
	if !isFile {
		// Only the caller should create the parent directory. But before a late effect, the caller
		// may have removed it, so this code creates it again. Many real plugins do the same.
		return os.MkdirAll(target, 0o755)
	}

	f, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}

	return f.Close()
}

// unpublish unmounts and removes a target. If the target directory contains files after the
// unmount, unpublish keeps them and returns an error.
func unpublish(target string) error {
	if err := unmountAll(target); err != nil {
		return err
	}
	return removeTarget(target)
}

func removeTarget(target string) error {
	if err := os.Remove(target); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

func (s *node) NodeUnpublishVolume(ctx context.Context, m *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if m.GetVolumeId() == "" || m.GetTargetPath() == "" {
		return nil, status.Error(codes.InvalidArgument, "unpublishing needs a volume id and a target")
	}

	o, target := optionsOf(ctx), m.GetTargetPath()
	defer s.p.store.lock(m.GetVolumeId())()

	if err := o.demands("", target); err != nil {
		return nil, err
	}

	err := unmountAll(target)
	if err == nil && o.twist != Kept {
		err = removeTarget(target)
	}
	if err == nil && !s.p.cfg.Stage && !s.p.cfg.Attach {
		err = s.p.store.release(m.GetVolumeId())
	}

	return &csi.NodeUnpublishVolumeResponse{}, err
}
