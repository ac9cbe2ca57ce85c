// Package spec reads volume files: what a person writes to create or register
// volumes becomes [api.VolumeSpec] values, and every mistake is told with file,
// line and column. It writes them as well.
//
// A file is YAML, JSON (read by the same code, so that JSON errors have lines as
// well) or HCL in the form of Nomad's volume specification. YAML and JSON may
// also hold volumes as others show them: Kubernetes' PersistentVolumes and what
// "nomad volume status -json" prints. Such a file holds one volume, several
// documents, or a list; one in HCL holds one volume. All formats become the same
// tree, which one decoder reads.
//
// Reading is strict: an unknown field, a value of another type or an anchor is an
// error, because a field that is silently ignored is found out when the data is
// not where it should be.
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

// Origin is who describes a volume.
type Origin string

// Origins. The zero value is a volume file of ours, or one written for Nomad.
const (
	Own        Origin = ""
	Kubernetes Origin = "Kubernetes" // a PersistentVolume
	Nomad      Origin = "Nomad"      // nomad volume status -json
)

// Document is one volume of a file.
type Document struct {
	Spec api.VolumeSpec
	// Line is where it names its id, from 1.
	Line int
	From Origin
	// Driver is the CSI driver that the document names: of Kubernetes in place of a
	// plugin, which it does not know. Empty is not said.
	Driver string
	// FlagsHidden is set where there may be mount flags that are not shown.
	FlagsHidden bool
	// Warnings are what a person has to see to before the volume is used here, one
	// sentence each.
	Warnings []string
}

// Parse reads all volumes of a file that may be created: one that describes what
// exists elsewhere is refused. Else it is as [Read].
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

// Read reads all volumes of a file. The name is used in errors and, by its ending,
// to tell formats apart ([formatOf]). The error is an [Errors] that lists every
// mistake found; with an error nothing else is returned.
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

// result is what was found, unless there were mistakes.
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

// read finds all volumes of a file.
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

// documents walks all YAML documents of a text that begins so many lines and
// columns into the file. A syntax error ends it: nothing after one can be placed
// with certainty.
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

// located is a volume and the place of its id.
type located struct {
	Document

	at *yaml.Node
}

// document reads one document: a volume, or a list of them. An empty document,
// as a trailing "---" makes one, holds nothing.
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

// entry reads a volume in whichever words it is described.
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
