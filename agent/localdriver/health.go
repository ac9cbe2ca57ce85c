package localdriver

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// symptoms is what was seen of one volume.
type symptoms struct {
	metadata string // why volume.json cannot be used
	kind     string // what is missing, in words
	missing  bool   // the data is not there at all
	recorded int64  // bytes an image must have
	actual   int64  // bytes it has

	dead       string // why the mounted filesystem does not answer
	readOnly   bool   // it refuses writes although it was mounted for them
	errors     int64  // the kernel noted in it
	filesystem int64  // its bytes
	device     int64  // bytes of the device it is on

	unmounted string // a path where the volume should be and is not
	foreign   string // a path where something else is
	quota     string // why the quota is not in force
}

// condition is one thing that can be wrong. words are empty when it is not.
type condition struct {
	status csi.VolumeHealthErrorType
	reason string
	words  func(s symptoms) string
}

// conditions lists all that can be wrong with a volume, the worst first. The reasons are for
// programs, too: one that is there is never renamed.
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

// diagnose names what is wrong with a volume; nothing is an empty list.
func diagnose(id string, s symptoms) *csi.VolumeHealth {
	h := &csi.VolumeHealth{VolumeId: id}
	for _, c := range conditions {
		if words := c.words(s); words != "" {
			h.HealthStatuses = append(h.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{Status: c.status, Reason: c.reason, Message: words})
		}
	}
	return h
}

// storage is what was seen of the filesystem that holds the volumes.
type storage struct {
	gone        string // why it cannot be looked at
	readOnly    bool
	free, total int64  // bytes
	promised    int64  // bytes that sparse images may still take
	inodesFree  uint64 // 0 of 0 where there is no fixed number
	inodes      uint64
}

// The disk counts as nearly full below a twentieth of it or this, whichever is less, and as full
// when not even this is left.
const (
	nearlyFull = 10 * gib
	full       = mib
)

// storageConditions lists all that can be wrong below the volumes.
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

// diagnoseStorage names what is wrong below the volumes.
func diagnoseStorage(s storage) []*csi.NodeGetStorageHealthResponse_StorageBackendHealth {
	var found []*csi.NodeGetStorageHealthResponse_StorageBackendHealth
	for _, c := range storageConditions {
		if words := c.words(s); words != "" {
			found = append(found, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{Status: c.status, Reason: c.reason, Message: words})
		}
	}
	return found
}
