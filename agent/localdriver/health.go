package localdriver

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// symptoms holds the observations about one volume.
type symptoms struct {
	metadata string // why volume.json cannot be used
	kind     string // the type of the volume, for the message about missing data
	missing  bool   // the data does not exist
	recorded int64  // the bytes that an image must have
	actual   int64  // the bytes that it has

	dead       string // why the mounted filesystem does not answer
	readOnly   bool   // it refuses writes although it was mounted for them
	errors     int64  // errors that the kernel recorded in it
	filesystem int64  // the filesystem's size in bytes
	device     int64  // the size of its device in bytes

	unmounted string // a path where the volume should be mounted and is not
	foreign   string // a path that has a different mount
	quota     string // why the quota is not in force
}

// condition is one possible health problem. words returns "" if the volume does not have it.
type condition struct {
	status csi.VolumeHealthErrorType
	reason string
	words  func(s symptoms) string
}

// conditions lists all health problems of a volume, the worst first. Programs also use the reasons,
// so an existing reason is never renamed.
var conditions = []condition{
	{csi.VolumeHealthErrorType_DATA_LOSS, "DataMissing", func(s symptoms) string {
		return when(s.missing, "the %s that holds the data is missing", s.kind)
	}},
	{csi.VolumeHealthErrorType_DATA_LOSS, "ImageTruncated", func(s symptoms) string {
		return when(!s.missing && s.actual < s.recorded, "the image has %d bytes, less than the %d recorded", s.actual, s.recorded)
	}},
	{csi.VolumeHealthErrorType_INACCESSIBLE, "MetadataUnreadable", func(s symptoms) string {
		return when(s.metadata != "", "%s", s.metadata)
	}},
	{csi.VolumeHealthErrorType_INACCESSIBLE, "FilesystemShutDown", func(s symptoms) string {
		return when(s.dead != "", "the filesystem is shut down after an error: %s; mount the volume anew", s.dead)
	}},
	{csi.VolumeHealthErrorType_INACCESSIBLE, "OtherMount", func(s symptoms) string {
		return when(s.foreign != "", "something else is mounted at %q", s.foreign)
	}},
	{csi.VolumeHealthErrorType_INACCESSIBLE, "NotMounted", func(s symptoms) string {
		return when(s.unmounted != "", "the volume is not mounted at %q", s.unmounted)
	}},
	{csi.VolumeHealthErrorType_DEGRADED, "FilesystemReadOnly", func(s symptoms) string {
		return when(s.readOnly && s.dead == "", "the kernel made the filesystem read-only after an error; mount the volume anew")
	}},
	{csi.VolumeHealthErrorType_DEGRADED, "FilesystemErrors", func(s symptoms) string {
		return when(s.errors > 0, "the kernel noted %d errors in the filesystem; it is checked when the volume is staged again", s.errors)
	}},
	{csi.VolumeHealthErrorType_DEGRADED, "FilesystemTooSmall", func(s symptoms) string {
		return when(s.device-s.filesystem > s.device/8, "the filesystem has %d bytes and its device %d; expand the volume again", s.filesystem, s.device)
	}},
	{csi.VolumeHealthErrorType_DEGRADED, "QuotaNotEnforced", func(s symptoms) string {
		return when(s.quota != "", "the quota is not in force: %s", s.quota)
	}},
}

func when(is bool, format string, args ...any) string {
	if !is {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

// diagnose lists the health problems of a volume. The list of a healthy volume is empty.
func diagnose(id string, s symptoms) *csi.VolumeHealth {
	h := &csi.VolumeHealth{VolumeId: id}
	for _, c := range conditions {
		if words := c.words(s); words != "" {
			h.HealthStatuses = append(h.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{Status: c.status, Reason: c.reason, Message: words})
		}
	}
	return h
}

// storage holds the observations about the filesystem that holds the volumes.
type storage struct {
	gone        string // why it cannot be examined
	readOnly    bool
	free, total int64  // bytes
	promised    int64  // bytes that sparse images may still allocate
	inodesFree  uint64 // 0 of 0 if the filesystem has no fixed number
	inodes      uint64
}

// The disk counts as nearly full if less than a twentieth of it is free, or less than nearlyFull
// bytes if that is smaller. With less than a MiB free, it counts as full.
const (
	nearlyFull = int64(10) << 30
	full       = int64(1) << 20
)

// storageConditions lists all health problems of the filesystem below the volumes.
var storageConditions = []struct {
	status csi.StorageHealthErrorType
	reason string
	words  func(s storage) string
}{
	{csi.StorageHealthErrorType_STORAGE_UNREACHABLE, "StateDirUnavailable", func(s storage) string {
		return when(s.gone != "", "%s", s.gone)
	}},
	{csi.StorageHealthErrorType_STORAGE_DEGRADED, "DiskReadOnly", func(s storage) string {
		return when(s.gone == "" && s.readOnly, "the filesystem that holds the volumes is read-only")
	}},
	{csi.StorageHealthErrorType_STORAGE_DEGRADED, "DiskFull", func(s storage) string {
		return when(s.gone == "" && s.free < full, "the disk that holds the volumes is full: %s", s.space())
	}},
	{csi.StorageHealthErrorType_STORAGE_DEGRADED, "DiskNearlyFull", func(s storage) string {
		return when(s.gone == "" && s.free >= full && s.free < min(s.total/20, nearlyFull), "the disk that holds the volumes is nearly full: %s", s.space())
	}},
	{csi.StorageHealthErrorType_STORAGE_DEGRADED, "InodesNearlyUsedUp", func(s storage) string {
		return when(s.gone == "" && s.inodesFree < s.inodes/20, "the disk that holds the volumes has %d of %d inodes left", s.inodesFree, s.inodes)
	}},
}

func (s storage) space() string {
	return fmt.Sprintf("%d of %d bytes are left, and images may still take %d", s.free, s.total, s.promised)
}

// diagnoseStorage lists the health problems of the filesystem below the volumes.
func diagnoseStorage(s storage) []*csi.NodeGetStorageHealthResponse_StorageBackendHealth {
	var found []*csi.NodeGetStorageHealthResponse_StorageBackendHealth
	for _, c := range storageConditions {
		if words := c.words(s); words != "" {
			found = append(found, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{Status: c.status, Reason: c.reason, Message: words})
		}
	}
	return found
}
