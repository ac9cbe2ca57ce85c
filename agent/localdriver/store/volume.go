package store

import (
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Describe returns the kind of the volume in words, for error messages.
func (v Volume) Describe() string {
	switch {
	case v.Type == TypeDirectory:
		return "it is a directory"
	case v.FSType == "":
		return "it is a raw image"
	}
	return "it is an image with " + v.FSType
}

// Context returns the volume_context. It is only for people: the driver does not use the copy of it
// that a request contains.
func (v Volume) Context() map[string]string {
	m := map[string]string{ParamType: v.Type}
	if v.FSType != "" {
		m[ParamFSType] = v.FSType
	}
	if v.QuotaIsSize {
		m[ContextSize] = SizeEnforced
	}
	return m
}

// The volume context has this key and value if a directory volume cannot outgrow its size.
const (
	ContextSize  = "size"
	SizeEnforced = "enforced"
)

// CSI returns the volume in the form of a CSI answer.
func (v Volume) CSI() *csi.Volume {
	return &csi.Volume{VolumeId: v.ID, CapacityBytes: v.Capacity, VolumeContext: v.Context(), ContentSource: v.contentSource()}
}

// contentSource returns the source of a volume in the form of a CSI answer, or nil.
func (v Volume) contentSource() *csi.VolumeContentSource {
	switch {
	case v.Source == "":
		return nil
	case ValidIDOf(SnapPrefix, v.Source):
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: v.Source}}}
	}
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.Source}}}
}

// These are the create parameters, and the possible values of the parameter "type".
const (
	ParamType   = "type"
	ParamFSType = "fs_type"

	TypeDirectory = "directory"
	TypeImage     = "image"
)

// Volume is the content of volume.json: the properties that were requested for the volume. The file
// does not contain the current mounts.
type Volume struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	Name    string `json:"name"`
	Type    string `json:"type"` // TypeDirectory or TypeImage
	// the filesystem of an image; empty for a raw image
	FSType   string    `json:"fs_type,omitempty"`
	Block    bool      `json:"block"`          // block access was requested
	Capacity int64     `json:"capacity_bytes"` // 0 for a directory if no size was requested
	Created  time.Time `json:"created"`
	// the id of the snapshot or volume from which the volume was copied
	Source string `json:"source,omitempty"`

	// Quota, Project and Assigning are set only for directories. Quota is the limit in bytes, or 0
	// for none. Project is the id of the filesystem project that has the limit, or 0 for none.
	// Assigning is true while some files may not belong to the project yet.
	Quota     int64  `json:"quota_bytes,omitempty"`
	Project   uint32 `json:"project,omitempty"`
	Assigning bool   `json:"assigning,omitempty"`
	// QuotaIsSize means that the quota is always equal to the capacity, until a request sets
	// another quota.
	QuotaIsSize bool `json:"quota_is_size,omitempty"`
}
