// Package health converts observations about volumes and their storage to the health problems that
// CSI defines.
package health

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Symptoms contains the observations about one volume.
type Symptoms struct {
	Metadata string // why volume.json cannot be used; empty if it can
	Kind     string // the type of the volume, for a message about missing data
	Missing  bool   // the volume's data does not exist
	Recorded int64  // the size in bytes that an image must have
	Actual   int64  // the size in bytes that the image has

	Dead       string // why the mounted filesystem does not respond; empty if it does
	ReadOnly   bool   // the filesystem refuses writes although it was mounted for writing
	Errors     int64  // how many errors the kernel has recorded in the filesystem
	Filesystem int64  // the filesystem's size in bytes
	Device     int64  // the size of its device in bytes

	Unmounted string // a path where the volume should be mounted but is not
	Foreign   string // a path with a mount that does not belong to the volume
	Quota     string // why the quota is not in force; empty if it is
}

// condition is a health problem that a volume may have. The function words describes the problem,
// or returns "" if the volume does not have the problem.
type condition struct {
	status csi.VolumeHealthErrorType
	reason string
	words  func(s Symptoms) string
}

// conditions lists all health problems that a volume can have, the worst first. Programs rely on
// the reasons, so an existing reason must never be renamed.
var conditions = []condition{
	{csi.VolumeHealthErrorType_DATA_LOSS, "DataMissing", func(s Symptoms) string {
		return when(s.Missing, "the %s that holds the data is missing", s.Kind)
	}},
	{csi.VolumeHealthErrorType_DATA_LOSS, "ImageTruncated", func(s Symptoms) string {
		return when(!s.Missing && s.Actual < s.Recorded, "the image has %d bytes, less than the %d recorded", s.Actual, s.Recorded)
	}},
	{csi.VolumeHealthErrorType_INACCESSIBLE, "MetadataUnreadable", func(s Symptoms) string {
		return when(s.Metadata != "", "%s", s.Metadata)
	}},
	{csi.VolumeHealthErrorType_INACCESSIBLE, "FilesystemShutDown", func(s Symptoms) string {
		return when(s.Dead != "", "the filesystem is shut down after an error: %s; mount the volume anew", s.Dead)
	}},
	{csi.VolumeHealthErrorType_INACCESSIBLE, "OtherMount", func(s Symptoms) string {
		return when(s.Foreign != "", "something else is mounted at %q", s.Foreign)
	}},
	{csi.VolumeHealthErrorType_INACCESSIBLE, "NotMounted", func(s Symptoms) string {
		return when(s.Unmounted != "", "the volume is not mounted at %q", s.Unmounted)
	}},
	{csi.VolumeHealthErrorType_DEGRADED, "FilesystemReadOnly", func(s Symptoms) string {
		return when(s.ReadOnly && s.Dead == "", "the kernel made the filesystem read-only after an error; mount the volume anew")
	}},
	{csi.VolumeHealthErrorType_DEGRADED, "FilesystemErrors", func(s Symptoms) string {
		return when(s.Errors > 0, "the kernel noted %d errors in the filesystem; it is checked when the volume is staged again", s.Errors)
	}},
	{csi.VolumeHealthErrorType_DEGRADED, "FilesystemTooSmall", func(s Symptoms) string {
		return when(s.Device-s.Filesystem > s.Device/8, "the filesystem has %d bytes and its device %d; expand the volume again", s.Filesystem, s.Device)
	}},
	{csi.VolumeHealthErrorType_DEGRADED, "QuotaNotEnforced", func(s Symptoms) string {
		return when(s.Quota != "", "the quota is not in force: %s", s.Quota)
	}},
}

func when(is bool, format string, args ...any) string {
	if !is {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

// Diagnose lists the health problems of a volume. The list of a healthy volume is empty.
func Diagnose(id string, s Symptoms) *csi.VolumeHealth {
	h := &csi.VolumeHealth{VolumeId: id}
	for _, c := range conditions {
		if words := c.words(s); words != "" {
			h.HealthStatuses = append(h.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{Status: c.status, Reason: c.reason, Message: words})
		}
	}
	return h
}

// Storage contains the observations about the filesystem that contains the volumes.
type Storage struct {
	Gone        string // why the filesystem cannot be examined; empty if it can
	ReadOnly    bool
	Free, Total int64 // bytes
	Promised    int64 // the bytes that sparse images may still allocate
	// InodesFree and Inodes are 0 if the filesystem has no fixed number of inodes
	InodesFree uint64
	Inodes     uint64
}

// The disk counts as nearly full if less than 5 % of it is free. On a large disk, it counts as
// nearly full only if less than nearlyFull bytes are free. It counts as full if less than the
// number of bytes in full is free.
const (
	nearlyFull = int64(10) << 30
	full       = int64(1) << 20
)

// storageConditions lists all health problems that the filesystem below the volumes can have.
var storageConditions = []struct {
	status csi.StorageHealthErrorType
	reason string
	words  func(s Storage) string
}{
	{csi.StorageHealthErrorType_STORAGE_UNREACHABLE, "StateDirUnavailable", func(s Storage) string {
		return when(s.Gone != "", "%s", s.Gone)
	}},
	{csi.StorageHealthErrorType_STORAGE_DEGRADED, "DiskReadOnly", func(s Storage) string {
		return when(s.Gone == "" && s.ReadOnly, "the filesystem that holds the volumes is read-only")
	}},
	{csi.StorageHealthErrorType_STORAGE_DEGRADED, "DiskFull", func(s Storage) string {
		return when(s.Gone == "" && s.Free < full, "the disk that holds the volumes is full: %s", s.space())
	}},
	{csi.StorageHealthErrorType_STORAGE_DEGRADED, "DiskNearlyFull", func(s Storage) string {
		return when(s.Gone == "" && s.Free >= full && s.Free < min(s.Total/20, nearlyFull), "the disk that holds the volumes is nearly full: %s", s.space())
	}},
	{csi.StorageHealthErrorType_STORAGE_DEGRADED, "InodesNearlyUsedUp", func(s Storage) string {
		return when(s.Gone == "" && s.InodesFree < s.Inodes/20, "the disk that holds the volumes has %d of %d inodes left", s.InodesFree, s.Inodes)
	}},
}

func (s Storage) space() string {
	return fmt.Sprintf("%d of %d bytes are left, and images may still take %d", s.Free, s.Total, s.Promised)
}

// DiagnoseStorage lists the health problems of the filesystem below the volumes.
func DiagnoseStorage(s Storage) []*csi.NodeGetStorageHealthResponse_StorageBackendHealth {
	var found []*csi.NodeGetStorageHealthResponse_StorageBackendHealth
	for _, c := range storageConditions {
		if words := c.words(s); words != "" {
			found = append(found, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{Status: c.status, Reason: c.reason, Message: words})
		}
	}
	return found
}
