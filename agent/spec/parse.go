package spec

import (
	"bytes"
	"errors"
	"io"

	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/agent/api"
)

// Parse reads a file of volumes to create. It works like [Read], but refuses descriptions of
// volumes that already exist in another system.
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

// Read reads all volumes of a file. The ending of the file name decides the format, see [formatOf].
// If the file has mistakes, Read returns no volumes, and an [Errors] that lists every mistake with
// the name of the file.
func Read(name string, data []byte) ([]Document, error) {
	d := newDecoder(name, data)
	d.read(data)
	return d.result()
}

func newDecoder(name string, data []byte) *decoder {
	return &decoder{file: name, lines: 1 + bytes.Count(bytes.TrimRight(data, "\n"), []byte("\n"))}
}

// result returns the decoded volumes, or the mistakes if the file has any.
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
		d.numbers = true
		if root := d.hcl(data); root != nil {
			d.found = append(d.found, volumeDecoder{d}.volume(root))
		}
	} else if values := jsonValues(data); len(values) > 1 {
		for _, v := range values {
			d.documents(v.text, v.line, v.column, d.document)
		}
	} else {
		d.documents(data, 0, 0, d.document)
	}

	if len(d.found) == 0 && len(d.errs) == 0 {
		d.failAt(1, 1, "the file contains no volume")
	}

	d.duplicateIDs()
	return d.found
}

// documents calls each for every YAML document of a text. The arguments line and column are the
// position of the text in the file, both counted from 0. It stops at the first syntax error, because
// later error positions could be wrong.
func (d *decoder) documents(text []byte, line, column int, each func(doc *yaml.Node)) {
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
		each(&doc)
	}
}

// document decodes one YAML document, which contains a volume or a list of volumes. It ignores an
// empty document, for example after a "---" at the end of the file.
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

// entry decodes one volume. The names of the fields decide the format.
func (d *decoder) entry(n *yaml.Node) {
	switch {
	case given(n, "apiVersion"), given(n, "kind"):
		kubernetesDecoder{volumeDecoder{d}}.kubernetes(n)
	case given(n, "Volumes") && !given(n, "id"):
		nomadDecoder{volumeDecoder{d}}.answer(n)
	case given(n, "ID") && !given(n, "id"):
		d.found = append(d.found, nomadDecoder{volumeDecoder{d}}.nomad(n))
	default:
		d.found = append(d.found, volumeDecoder{d}.volume(n))
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
