package sandbox

import (
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Statuses returns a volume's health problems as text.
func Statuses(h *csi.VolumeHealth) string {
	var all []string
	for _, e := range h.GetHealthStatuses() {
		all = append(all, e.GetStatus().String()+" "+e.GetReason())
	}
	return strings.Join(all, ", ")
}

// Backends returns a storage's health problems as text.
func Backends(found []*csi.NodeGetStorageHealthResponse_StorageBackendHealth) string {
	var all []string
	for _, e := range found {
		all = append(all, e.GetStatus().String()+" "+e.GetReason())
	}
	return strings.Join(all, ", ")
}
