// Package spec reads the volume files with which an operator creates or registers volumes. It
// converts them to [api.VolumeSpec] values, and reports every mistake with its file, line and
// column. It also writes such files.
//
// A file is in YAML, JSON or HCL. The YAML parser also reads JSON, so that mistakes in JSON have a
// line, too. HCL files have the form of Nomad's volume specification. YAML and JSON files may also
// contain volumes in foreign formats: PersistentVolumes of Kubernetes, and the output of "nomad
// volume status -json". A YAML or JSON file contains one volume, several documents, or a list. An
// HCL file contains one volume. All formats become the same tree, which one decoder reads.
//
// The decoder is strict: an unknown field, a value of a wrong type and an anchor are errors. If the
// decoder ignored a wrong field, the user would notice the mistake only when data is in the wrong
// place.
package spec

import (
	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/agent/api"
)

// MaxFileSize is the maximum size of a volume file, in bytes.
const MaxFileSize = 1 << 20

// Origin is the system in whose format a document describes a volume.
type Origin string

// These are the origins. The zero value stands for a volume file in the agent's own format or in
// the format of Nomad's volume specification.
const (
	Own        Origin = ""
	Kubernetes Origin = "Kubernetes" // a PersistentVolume
	Nomad      Origin = "Nomad"      // the output of nomad volume status -json
)

// Document describes one of the volumes in a file.
type Document struct {
	Spec api.VolumeSpec

	// Line is the line of the volume's id, from 1.
	Line int
	From Origin

	// Driver is the CSI driver that the document names, or empty. A PersistentVolume names a driver
	// instead of a plugin.
	Driver string

	// FlagsHidden is set if the document hides mount flags.
	FlagsHidden bool

	// Warnings tell the operator what to do before the volume is claimed on this host, one sentence
	// each.
	Warnings []string
}

func (o Origin) article() string {
	switch o {
	case Kubernetes:
		return "a Kubernetes PersistentVolume"
	case Nomad:
		return "the output of nomad volume status"
	}
	return "a volume"
}

// located is a decoded volume with the YAML node of its id.
type located struct {
	Document

	at *yaml.Node
}
