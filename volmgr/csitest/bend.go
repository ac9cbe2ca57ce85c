package csitest

import "github.com/container-storage-interface/spec/lib/go/csi"

// bend changes an answer as the twist requires.
func (t Twist) bend(resp any) {
	switch t {
	case Short:
		bendSize(resp)
	case Nameless:
		bendName(resp)
	case Unready:
		for _, s := range snapshotsIn(resp) {
			s.ReadyToUse = false
		}

		if m, ok := resp.(interface {
			GetGroupSnapshot() *csi.VolumeGroupSnapshot
		}); ok {
			m.GetGroupSnapshot().ReadyToUse = false
		}
	case Endless:
		switch m := resp.(type) {
		case *csi.ListVolumesResponse:
			m.NextToken = tokenPrefix
		case *csi.ListSnapshotsResponse:
			m.NextToken = tokenPrefix
		case *csi.ControllerListVolumeHealthResponse:
			m.NextToken = tokenPrefix
		}
	}
}

func bendSize(resp any) {
	switch m := resp.(type) {
	case *csi.CreateVolumeResponse:
		m.Volume.CapacityBytes /= 2
	case *csi.ControllerExpandVolumeResponse:
		m.CapacityBytes /= 2
	case *csi.NodeExpandVolumeResponse:
		m.CapacityBytes /= 2
	}
}

func bendName(resp any) {
	switch m := resp.(type) {
	case *csi.CreateVolumeResponse:
		m.Volume.VolumeId = ""
	case *csi.CreateSnapshotResponse:
		m.Snapshot.SnapshotId = ""
	case *csi.CreateVolumeGroupSnapshotResponse:
		m.GroupSnapshot.GroupSnapshotId = ""
	}
}

// snapshotsIn returns the snapshots that an answer contains.
func snapshotsIn(resp any) []*csi.Snapshot {
	switch m := resp.(type) {
	case interface{ GetSnapshot() *csi.Snapshot }:
		return []*csi.Snapshot{m.GetSnapshot()}
	case interface {
		GetGroupSnapshot() *csi.VolumeGroupSnapshot
	}:
		return m.GetGroupSnapshot().GetSnapshots()
	case *csi.ListSnapshotsResponse:
		var all []*csi.Snapshot
		for _, e := range m.GetEntries() {
			all = append(all, e.GetSnapshot())
		}
		return all
	default:
		return nil
	}
}
