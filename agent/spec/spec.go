// Package spec reads the volume files with which an operator creates or registers volumes. It
// converts them to [api.VolumeSpec] values, and reports every mistake with its file, line and
// column. It also writes such files.
//
// A file is in YAML, JSON or HCL. The YAML parser also reads JSON, so errors about JSON have a line
// number, too. HCL files have the form of Nomad's volume specification. YAML and JSON files may
// also contain volumes in foreign formats: PersistentVolumes of Kubernetes, and the output of
// "nomad volume status -json". A YAML or JSON file contains one volume, several documents, or a
// list. An HCL file contains one volume. The parsers of all formats produce the same kind of tree,
// which a single decoder reads.
//
// The decoder is strict: an unknown field, a value of a wrong type and an anchor are errors. If the
// decoder ignored an unknown field, the user might notice the mistake only after data was written
// to the wrong place.
package spec

import (
	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/agent/api"
)

// MaxFileSize is the maximum size of a volume file, in bytes.
const MaxFileSize = 1 << 20

// Origin is the system whose format a document uses.
type Origin string

// These are the origins. The zero value means the agent's own format, or the format of Nomad's
// volume specification.
const (
	Own        Origin = ""
	Kubernetes Origin = "Kubernetes" // a PersistentVolume
	Nomad      Origin = "Nomad"      // the output of nomad volume status -json
)

// Document describes one volume of a file.
type Document struct {
	Spec api.VolumeSpec

	// Line is the line of the volume's id, counted from 1.
	Line int
	From Origin

	// Driver is the CSI driver in the document, or empty. A PersistentVolume specifies a driver
	// instead of a plugin.
	Driver string

	// FlagsHidden is set if the volume has mount flags that the document does not show.
	FlagsHidden bool

	// Warnings tell the operator what to do before claiming the volume on this host. Each warning
	// is one sentence.
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

// located is a decoded volume together with the YAML node of its id.
type located struct {
	Document

	at *yaml.Node
}
