package service

import (
	"context"
	"slices"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/volume"
)

// ClassFiles are the classes of volumes on this host.
type ClassFiles interface {
	// All returns all classes, sorted by id, without the volumes that they have made.
	All() []api.Class

	// Spec returns the complete specification of a new volume for a request that names a class.
	Spec(request api.VolumeSpec) (api.VolumeSpec, error)

	// Again returns the specification for a repeated request about a volume that exists. The fields
	// that the request leaves out have the values of the volume.
	Again(had, request api.VolumeSpec) api.VolumeSpec
}

// Classes answers requests about classes of volumes.
type Classes struct {
	view
	files ClassFiles
}

// List returns all classes, sorted by id, each with the volumes that were created with it.
func (c Classes) List() []api.Class {
	made := map[string][]string{}
	for _, r := range c.sorted() {
		made[r.Volume.Class] = append(made[r.Volume.Class], r.Volume.ID)
	}

	all := c.files.All()
	for i, one := range all {
		if ids := made[one.Spec.ID]; one.Spec.ID != "" && ids != nil {
			all[i].Volumes = ids
		}
	}
	return all
}

// Get returns one class. If several files contain the id, Get returns the class without a problem, or
// else the first one.
func (c Classes) Get(id string) (api.Class, error) {
	all := slices.DeleteFunc(c.List(), func(one api.Class) bool { return one.Spec.ID != id || id == "" })
	if len(all) == 0 {
		return api.Class{}, asAPI(volume.Errorf(volume.ErrNotFound, "no class %q", id).WithHint("volctl class list"))
	}
	i := slices.IndexFunc(all, func(one api.Class) bool { return one.Problem == "" })
	return all[max(i, 0)], nil
}

// classified returns the complete specification for a request that names a class, and other requests
// unchanged. For a volume that was created with the same class, the class file no longer matters: it
// may have changed since, or be gone.
func (v Volumes) classified(ctx context.Context, request api.VolumeSpec) (api.VolumeSpec, error) {
	if request.Class == "" {
		return request, nil
	}
	if err := volume.CheckID("volume id", request.ID); err != nil {
		return request, err
	}

	rec, known := v.records.Volume(request.ID)
	if !known {
		// If the cluster does not answer, the create itself reports it.
		if shared, ok, err := v.do.SharedRecord(ctx, request.ID); ok && err == nil {
			rec, known = shared, true
		}
	}
	if known && rec.Volume.Provision == volume.Provisioned && rec.Volume.Class == request.Class {
		return v.classes.Again(toSpec(rec.Volume), request), nil
	}
	return v.classes.Spec(request)
}
