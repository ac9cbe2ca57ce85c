package apiserver

import (
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/service"
)

func createSnapshot(s *Server, r *request) action {
	wait, ask := r.duration("wait"), body[api.SnapshotRequest](r)
	return func() (any, error) { return s.o.Snapshots.Create(r.Context(), r.by, ask, wait) }
}

func createGroupSnapshot(s *Server, r *request) action {
	wait, ask := r.duration("wait"), body[api.GroupSnapshotRequest](r)
	return func() (any, error) { return s.o.Snapshots.CreateGroup(r.Context(), r.by, ask, wait) }
}

func listSnapshots(s *Server, r *request) action {
	f := service.SnapshotFilter{PluginID: r.text("plugin"), VolumeID: r.text("volume"), Pending: r.flag("pending"), Secrets: r.secrets()}
	return func() (any, error) { return s.o.Snapshots.List(r.Context(), r.by, f) }
}

// snapshotID reads the snapshot that a path names.
func snapshotID(r *request) service.SnapshotID {
	return service.SnapshotID{PluginID: r.PathValue("plugin"), ID: r.PathValue("id")}
}

// groupID reads the group of snapshots that a path names.
func groupID(r *request) service.SnapshotID {
	return service.SnapshotID{PluginID: r.PathValue("plugin"), ID: r.PathValue("id"), Group: true}
}

func getGroupSnapshot(s *Server, r *request) action {
	ref := api.SnapshotRef{Snapshots: r.URL.Query()["snapshot"], Secrets: r.secrets()}
	return func() (any, error) { return s.o.Snapshots.Group(r.Context(), r.by, groupID(r), ref) }
}

func deleteSnapshot(s *Server, r *request) action {
	wait, forget, ref := r.duration("wait"), r.flag("forget"), body[api.SnapshotRef](r)
	if forget {
		return func() (any, error) { return s.o.Snapshots.Forget(r.Context(), r.by, snapshotID(r)) }
	}
	return func() (any, error) { return s.o.Snapshots.Delete(r.Context(), r.by, snapshotID(r), ref, wait) }
}

func deleteGroupSnapshot(s *Server, r *request) action {
	wait, ref := r.duration("wait"), body[api.SnapshotRef](r)
	return func() (any, error) { return s.o.Snapshots.Delete(r.Context(), r.by, groupID(r), ref, wait) }
}
