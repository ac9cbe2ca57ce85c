// Package spec reads the volume files with which a person creates or registers volumes. It turns
// them into [api.VolumeSpec] values, and reports every mistake with file, line and column. It also
// writes such files.
//
// A file is in YAML, in JSON or in HCL. The YAML parser also reads JSON, so that errors in JSON
// have lines as well. HCL files have the form of Nomad's volume specification. YAML and JSON may
// also hold volumes in foreign formats: PersistentVolumes of Kubernetes, and the output of "nomad
// volume status -json". A file in YAML or JSON holds one volume, several documents, or a list. A
// file in HCL holds one volume. All formats become the same tree, which one decoder reads.
//
// The decoder is strict. An unknown field, a value of a wrong type and an anchor are errors. If a
// field were silently ignored, the user would notice only when the data is not where it should be.
package spec

import (
	"bytes"
	"errors"
	"io"

	"github.com/volagent/volagent/agent/api"
	"go.yaml.in/yaml/v3"
)

// MaxFileSize is the largest volume file that is read, in bytes.
const MaxFileSize = 1 << 20

// Origin is the system that describes a volume.
type Origin string

// The origins. The zero value is a volume file for this agent, or one written for Nomad.
const (
	Own        Origin = ""
	Kubernetes Origin = "Kubernetes" // a PersistentVolume
	Nomad      Origin = "Nomad"      // the output of nomad volume status -json
)

// Document is one volume of a file.
type Document struct {
	Spec api.VolumeSpec

	// Line is the line of its id, from 1.
	Line int
	From Origin

	// Driver is the CSI driver that the document names. A PersistentVolume names a driver instead
	// of a plugin. It is empty if the document names no driver.
	Driver string

	// FlagsHidden is set if the document hides mount flags.
	FlagsHidden bool

	// Warnings are tasks for a person before the volume is used here, one sentence each.
	Warnings []string
}

// Parse reads all volumes of a file for their creation. It refuses descriptions of volumes that
// exist elsewhere. Otherwise it works as [Read].
func Parse(name string, data []byte) ([]api.VolumeSpec, error) {
	d := newDecoder(name, data)
	for _, f := range d.read(data) {
		if f.From != Own {
			d.fail(f.at, "%s describes a volume that exists: it can only be registered (volctl volume register)", f.From.article())
		}
	}

	docs, err := d.result()
	if err != nil {
		return nil, err
	}

	specs := make([]api.VolumeSpec, len(docs))
	for i, f := range docs {
		specs[i] = f.Spec
	}

	return specs, nil
}

// Read reads all volumes of a file. Errors contain the name, and its ending decides the format
// ([formatOf]). The error is an [Errors] with every mistake found. With an error, no volumes are
// returned.
func Read(name string, data []byte) ([]Document, error) {
	d := newDecoder(name, data)
	d.read(data)
	return d.result()
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

func newDecoder(name string, data []byte) *decoder {
	return &decoder{file: name, lines: 1 + bytes.Count(bytes.TrimRight(data, "\n"), []byte("\n"))}
}

// result returns the volumes, or the mistakes if there are any.
func (d *decoder) result() ([]Document, error) {
	if len(d.errs) > 0 {
		return nil, d.errs
	}

	docs := make([]Document, len(d.found))
	for i, f := range d.found {
		docs[i] = f.Document
		if f.at != nil {
			docs[i].Line = f.at.Line
		}
	}

	return docs, nil
}

// read decodes all volumes of a file.
func (d *decoder) read(data []byte) []located {
	if len(data) > MaxFileSize {
		d.failAt(1, 1, "the file is larger than 1 MiB")
		return nil
	}

	if formatOf(d.file, data) == FormatHCL {
		if root := d.hcl(data); root != nil {
			d.found = append(d.found, d.volume(root))
		}
	} else if values := jsonValues(data); len(values) > 1 {
		for _, v := range values {
			d.documents(v.text, v.line, v.column)
		}
	} else {
		d.documents(data, 0, 0)
	}

	if len(d.found) == 0 && len(d.errs) == 0 {
		d.failAt(1, 1, "the file holds no volume")
	}

	d.duplicateIDs()
	return d.found
}

// documents decodes all YAML documents of a text. The text begins at this line and column of the
// file, both from 0. It stops at a syntax error, because the position of anything after it would be
// uncertain.
func (d *decoder) documents(text []byte, line, column int) {
	dec := yaml.NewDecoder(bytes.NewReader(fromJSON(text)))
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			d.syntax(err)
			return
		}

		shift(&doc, line, column)
		d.document(&doc)
	}
}

// located is a volume with the node of its id.
type located struct {
	Document

	at *yaml.Node
}

// document decodes one document: a volume, or a list of volumes. An empty document contains no
// volume. A trailing "---" makes one.
func (d *decoder) document(doc *yaml.Node) {
	if len(doc.Content) == 0 {
		return
	}

	root := doc.Content[0]
	if isNull(root) {
		return
	}
	if root.Kind != yaml.SequenceNode {
		d.entry(root)
		return
	}

	for _, n := range root.Content {
		d.entry(n)
	}
}

// entry decodes a volume in any of the formats.
func (d *decoder) entry(n *yaml.Node) {
	switch {
	case given(n, "apiVersion"), given(n, "kind"):
		d.kubernetes(n)
	case given(n, "ID") && !given(n, "id"):
		d.found = append(d.found, d.nomad(n))
	default:
		d.found = append(d.found, d.volume(n))
	}
}

func (d *decoder) duplicateIDs() {
	first := map[string]*yaml.Node{}
	for _, f := range d.found {
		if f.Spec.ID == "" {
			continue
		}
		if at, ok := first[f.Spec.ID]; ok {
			d.fail(f.at, "volume %q is in this file twice, first in line %d", f.Spec.ID, at.Line)
			continue
		}
		first[f.Spec.ID] = f.at
	}
}
