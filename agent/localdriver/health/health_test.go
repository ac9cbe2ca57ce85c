package health

import (
	"regexp"
	"testing"

	"github.com/volagent/volagent/agent/localdriver/sandbox"
)

// TestConditions has one line for each possible problem. It checks that each problem is reported by
// exactly one line.
func TestConditions(t *testing.T) {
	named := map[string]bool{}
	for _, c := range []struct {
		s    Symptoms
		want string
	}{
		{Symptoms{}, ""},
		{Symptoms{Recorded: 10, Actual: 10, Filesystem: 8, Device: 9, Kind: "image"}, ""},
		{Symptoms{Missing: true, Kind: "image", Recorded: 10}, "DATA_LOSS DataMissing"},
		{Symptoms{Recorded: 10, Actual: 9}, "DATA_LOSS ImageTruncated"},
		{Symptoms{Metadata: "no JSON"}, "INACCESSIBLE MetadataUnreadable"},
		{Symptoms{Dead: "EIO", ReadOnly: true}, "INACCESSIBLE FilesystemShutDown"},
		{Symptoms{Foreign: "/t"}, "INACCESSIBLE OtherMount"},
		{Symptoms{Unmounted: "/t"}, "INACCESSIBLE NotMounted"},
		{Symptoms{ReadOnly: true}, "DEGRADED FilesystemReadOnly"},
		{Symptoms{Errors: 3}, "DEGRADED FilesystemErrors"},
		{Symptoms{Filesystem: 80, Device: 100}, "DEGRADED FilesystemTooSmall"},
		{Symptoms{Quota: "no such luck"}, "DEGRADED QuotaNotEnforced"},
		{Symptoms{Recorded: 2, Actual: 1, Errors: 1}, "DATA_LOSS ImageTruncated, DEGRADED FilesystemErrors"},
	} {
		h := Diagnose("v", c.s)
		if got := sandbox.Statuses(h); got != c.want || h.GetVolumeId() != "v" {
			t.Errorf("%+v: got %q, want %q", c.s, got, c.want)
		}
		for _, e := range h.GetHealthStatuses() {
			named[e.GetReason()] = true
			if e.GetMessage() == "" || !regexp.MustCompile(`^([A-Z][a-z]+)+$`).MatchString(e.GetReason()) {
				t.Errorf("not for people and programs: %v", e)
			}
		}
	}
	if len(named) != len(conditions) {
		t.Errorf("%d conditions of %d are tested", len(named), len(conditions))
	}
}

func TestStorageConditions(t *testing.T) {
	const tib = 1024 << 30
	for _, c := range []struct {
		s    Storage
		want string
	}{
		{Storage{Free: 500 << 30, Total: tib, InodesFree: 100, Inodes: 100}, ""},
		// On a disk of any size, 10 GiB of free space are enough.
		{Storage{Free: 11 << 30, Total: tib, Promised: tib}, ""},
		{Storage{Free: 9 << 30, Total: tib}, "STORAGE_DEGRADED DiskNearlyFull"},
		{Storage{Free: 4 << 20, Total: 100 << 20}, "STORAGE_DEGRADED DiskNearlyFull"},
		{Storage{Free: 6 << 20, Total: 100 << 20}, ""},
		{Storage{Free: 0, Total: tib}, "STORAGE_DEGRADED DiskFull"},
		{Storage{Free: 1 << 30, Total: 2 << 30, InodesFree: 1, Inodes: 100}, "STORAGE_DEGRADED InodesNearlyUsedUp"},
		{Storage{Free: 1 << 30, Total: 2 << 30, ReadOnly: true}, "STORAGE_DEGRADED DiskReadOnly"},
		{Storage{Gone: "no such directory"}, "STORAGE_UNREACHABLE StateDirUnavailable"},
	} {
		if got := sandbox.Backends(DiagnoseStorage(c.s)); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.s, got, c.want)
		}
	}
}
