package manifest

import (
	"path"
	"slices"
	"strings"
)

// task is the work of a sidecar for its pod.
type task int

const (
	noTask         task = iota
	nodeTask            // registers the driver's node service with the kubelet
	controllerTask      // calls the driver's controller service
	watchTask           // only looks at the driver
)

// sidecars lists the sidecars of the Kubernetes CSI project and of CSI-Addons, by the end of their
// image's name. Registries and distributions use names of both forms, such as csi-provisioner and
// external-provisioner.
var sidecars = map[string]task{
	"node-driver-registrar":              nodeTask,
	"driver-registrar":                   nodeTask,
	"csi-provisioner":                    controllerTask,
	"external-provisioner":               controllerTask,
	"csi-attacher":                       controllerTask,
	"external-attacher":                  controllerTask,
	"csi-resizer":                        controllerTask,
	"external-resizer":                   controllerTask,
	"csi-snapshotter":                    controllerTask,
	"external-snapshotter":               controllerTask,
	"external-health-monitor-controller": controllerTask,
	"external-health-monitor-agent":      watchTask,
	"csi-snapshot-metadata":              controllerTask,
	"volume-data-source-validator":       watchTask,
	"livenessprobe":                      watchTask,
	"liveness-probe":                     watchTask,
	"k8s-sidecar":                        watchTask, // of CSI-Addons
}

// suffixes are additions of distributions to the names of images.
var suffixes = []string{"-container", "-rhel7", "-rhel8", "-rhel9", "-amd64", "-arm64"}

// sidecarTask returns the task of a known sidecar. For other containers it returns noTask.
func sidecarTask(c container) task {
	name, tag := imageName(c.Image)
	for _, suffix := range suffixes {
		name = strings.TrimSuffix(name, suffix)
	}

	// Mirrors put several images under one name, and tell them apart by the tag.
	for _, base := range []string{name, tag} {
		for known, t := range sidecars {
			if base == known || strings.HasSuffix(base, "-"+known) {
				return t
			}
		}
	}

	// The image of Ceph's driver is its own sidecar.
	if slices.Contains(c.Args, "--type=liveness") {
		return watchTask
	}

	return noTask
}

// imageName returns the last element of an image's name, and its tag.
func imageName(image string) (name, tag string) {
	image, _, _ = strings.Cut(image, "@")
	name, tag, _ = strings.Cut(path.Base(image), ":")
	return strings.ToLower(name), strings.ToLower(tag)
}
