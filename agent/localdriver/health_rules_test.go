package localdriver

import (
	"regexp"
	"testing"
)

// TestConditions has a line for each possible problem, and checks that each is reported once.
func TestConditions(t *testing.T) {
	named := map[string]bool{}
	for _, c := range []struct {
		s    symptoms
		want string
	}{
		{symptoms{}, ""},
		{symptoms{recorded: 10, actual: 10, filesystem: 8, device: 9, kind: "image"}, ""},
		{symptoms{missing: true, kind: "image", recorded: 10}, "DATA_LOSS DataMissing"},
		{symptoms{recorded: 10, actual: 9}, "DATA_LOSS ImageTruncated"},
		{symptoms{metadata: "no JSON"}, "INACCESSIBLE MetadataUnreadable"},
		{symptoms{dead: "EIO", readOnly: true}, "INACCESSIBLE FilesystemShutDown"},
		{symptoms{foreign: "/t"}, "INACCESSIBLE OtherMount"},
		{symptoms{unmounted: "/t"}, "INACCESSIBLE NotMounted"},
		{symptoms{readOnly: true}, "DEGRADED FilesystemReadOnly"},
		{symptoms{errors: 3}, "DEGRADED FilesystemErrors"},
		{symptoms{filesystem: 80, device: 100}, "DEGRADED FilesystemTooSmall"},
		{symptoms{quota: "no such luck"}, "DEGRADED QuotaNotEnforced"},
		{symptoms{recorded: 2, actual: 1, errors: 1}, "DATA_LOSS ImageTruncated, DEGRADED FilesystemErrors"},
	} {
		h := diagnose("v", c.s)
		if got := statuses(h); got != c.want || h.GetVolumeId() != "v" {
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
		s    storage
		want string
	}{
		{storage{free: 500 << 30, total: tib, inodesFree: 100, inodes: 100}, ""},
		{storage{free: 11 << 30, total: tib, promised: tib}, ""}, // 10 GiB are plenty, for any disk
		{storage{free: 9 << 30, total: tib}, "STORAGE_DEGRADED DiskNearlyFull"},
		{storage{free: 4 << 20, total: 100 << 20}, "STORAGE_DEGRADED DiskNearlyFull"},
		{storage{free: 6 << 20, total: 100 << 20}, ""},
		{storage{free: 0, total: tib}, "STORAGE_DEGRADED DiskFull"},
		{storage{free: 1 << 30, total: 2 << 30, inodesFree: 1, inodes: 100}, "STORAGE_DEGRADED InodesNearlyUsedUp"},
		{storage{free: 1 << 30, total: 2 << 30, readOnly: true}, "STORAGE_DEGRADED DiskReadOnly"},
		{storage{gone: "no such directory"}, "STORAGE_UNREACHABLE StateDirUnavailable"},
	} {
		if got := backends(diagnoseStorage(c.s)); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.s, got, c.want)
		}
	}
}
