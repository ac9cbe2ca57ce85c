package localdriver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/jobs"
	"github.com/volagent/volagent/agent/localdriver/request"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// GroupControllerGetCapabilities reports that the driver supports group snapshots.
func (d *driver) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{
		Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{
			Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT,
		}},
	}}}, nil
}

// CreateVolumeGroupSnapshot takes snapshots of several volumes at the same moment. If one snapshot
// fails, it keeps none of them. For copies that take long, see CreateSnapshot.
func (d *driver) CreateVolumeGroupSnapshot(ctx context.Context, req *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	name := req.GetName()
	if err := request.CheckName("group snapshot", name); err != nil {
		return nil, err
	}

	sources := slices.Sorted(slices.Values(req.GetSourceVolumeIds()))
	if len(sources) == 0 {
		return nil, csierr.Invalidf("no source volume ids are given")
	}
	if n := len(sources); len(slices.Compact(slices.Clone(sources))) != n {
		return nil, csierr.Invalidf("a source volume id is given twice")
	}

	perFile, err := request.ParseConsistency(req.GetParameters())
	if err != nil {
		return nil, err
	}
	if have, ok := d.store.GroupByName(name); ok {
		return answerGroup(have, sources)
	}

	for _, id := range sources {
		if _, err := d.volume(id); err != nil {
			return nil, err
		}
	}

	err = d.jobs.Do(ctx, "group/"+name, fmt.Sprint(sources, perFile), "group snapshot \""+name+"\"",
		func(ctx context.Context, p *jobs.Progress) error { return d.makeGroup(ctx, name, sources, perFile, p) })
	if err != nil {
		return nil, err
	}

	have, ok := d.store.GroupByName(name)
	if !ok {
		return nil, csierr.Errorf(codes.Aborted, "group snapshot %q was deleted as soon as it was made", name)
	}

	return answerGroup(have, sources)
}

// answerGroup returns the group if it was made from exactly the requested source volumes. The list
// sources is sorted.
func answerGroup(g store.Group, sources []string) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	var have []string
	for _, s := range g.Snapshots {
		have = append(have, s.Source)
	}
	slices.Sort(have)
	if !slices.Equal(have, sources) {
		return nil, csierr.Existsf("group snapshot %q exists, of the volumes %s and not of %s", g.Name, strings.Join(have, ", "), strings.Join(sources, ", "))
	}
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: g.CSI()}, nil
}

func (d *driver) makeGroup(ctx context.Context, name string, sources []string, perFile bool, p *jobs.Progress) error {
	if _, ok := d.store.GroupByName(name); ok {
		return nil // another call has made the group since the earlier check
	}

	c, err := d.hold(sources, perFile)
	if err != nil {
		return err
	}
	defer c.release()

	g := store.Group{Version: store.MetaVersion, ID: store.NewIDOf(store.GroupPrefix), Name: name, Created: time.Now().UTC()}
	for _, v := range c.volumes() {
		snap := store.NewSnapshot("", g.ID, v)
		snap.Created = g.Created
		g.Snapshots = append(g.Snapshots, snap)
	}

	err = d.store.AddGroup(ctx, g, func(dir string) error {
		var dirs []string
		for _, s := range g.Snapshots {
			dirs = append(dirs, filepath.Join(dir, s.ID))
			if err := os.Mkdir(dirs[len(dirs)-1], 0o700); err != nil {
				return err
			}
		}

		if err := c.take(ctx, dirs, p); err != nil {
			return err
		}

		for _, member := range dirs {
			if err := store.SyncDir(member); err != nil {
				return err
			}
		}

		return nil
	})
	if err == nil {
		d.log.Info("took a group snapshot", "group_snapshot_id", g.ID, "name", name, "volume_ids", sources)
	}

	return err
}

// DeleteVolumeGroupSnapshot removes a group with all its snapshots. After an error, no snapshot of
// the group is removed.
func (d *driver) DeleteVolumeGroupSnapshot(ctx context.Context, req *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	id := req.GetGroupSnapshotId()
	if id == "" {
		return nil, csierr.Invalidf("the group snapshot id is empty")
	}
	if !store.ValidIDOf(store.GroupPrefix, id) {
		return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
	}

	unlock, err := d.locks.Lock(id)
	if err != nil {
		return nil, err
	}
	defer unlock()

	switch g, err := d.store.GetGroup(id); {
	// Another call may have deleted the group but not yet removed its data.
	case errors.Is(err, store.ErrNoSnapshot):
	case err != nil:
		return nil, err
	default:
		if err := matches(g, req.GetSnapshotIds()); err != nil {
			return nil, err
		}
		if err := d.trashGroup(g); err != nil {
			return nil, err
		}
	}

	if err := d.store.Purge(ctx, id); err != nil {
		return nil, err
	}

	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}

// trashGroup deletes a group unless one of its snapshots is being copied.
func (d *driver) trashGroup(g store.Group) error {
	for _, s := range g.Snapshots {
		unlock, err := d.locks.Lock(s.ID)
		if err != nil {
			return err
		}
		defer unlock()
	}

	if err := d.store.TrashGroup(g); err != nil {
		return err
	}

	d.log.Info("deleted a group snapshot", "group_snapshot_id", g.ID, "name", g.Name)
	return nil
}

// matches returns an error unless the ids are exactly the snapshots of the group. An empty list
// always matches.
func matches(g store.Group, ids []string) error {
	if len(ids) == 0 {
		return nil
	}

	var have []string
	for _, s := range g.Snapshots {
		have = append(have, s.ID)
	}

	if want := slices.Sorted(slices.Values(ids)); !slices.Equal(slices.Sorted(slices.Values(have)), want) {
		return csierr.Invalidf("group snapshot %q holds the snapshots %s, not %s", g.ID, strings.Join(have, ", "), strings.Join(want, ", "))
	}

	return nil
}

// GetVolumeGroupSnapshot returns one group.
func (d *driver) GetVolumeGroupSnapshot(_ context.Context, req *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	id := req.GetGroupSnapshotId()
	if id == "" {
		return nil, csierr.Invalidf("the group snapshot id is empty")
	}

	g, err := d.store.GetGroup(id)
	if errors.Is(err, store.ErrNoSnapshot) {
		return nil, csierr.Errorf(codes.NotFound, "no group snapshot %q", id)
	}
	if err == nil {
		err = matches(g, req.GetSnapshotIds())
	}
	if err != nil {
		return nil, err
	}

	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: g.CSI()}, nil
}
