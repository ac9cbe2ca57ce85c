package sandbox

import (
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Statuses formats the health problems of a volume as text.
func Statuses(h *csi.VolumeHealth) string {
	var all []string
	for _, e := range h.GetHealthStatuses() {
		all = append(all, e.GetStatus().String()+" "+e.GetReason())
	}
	return strings.Join(all, ", ")
}

// Backends formats the health problems of the storage as text.
func Backends(found []*csi.NodeGetStorageHealthResponse_StorageBackendHealth) string {
	var all []string
	for _, e := range found {
		all = append(all, e.GetStatus().String()+" "+e.GetReason())
	}
	return strings.Join(all, ", ")
}
