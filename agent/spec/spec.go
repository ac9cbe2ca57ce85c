// Package spec reads volume files: what a person writes to create or register
// volumes becomes [api.VolumeSpec] values, and every mistake is told with file,
// line and column.
//
// A file is YAML or JSON (read by the same code, so that JSON errors have lines
// as well). It holds one volume, several YAML documents, or a list of volumes.
// Reading is strict: an unknown field, a value of another type or an anchor is an
// error, because a field that is silently ignored is found out when the data is
// not where it should be.
package spec

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"strings"

	"github.com/volagent/volagent/agent/api"
	"go.yaml.in/yaml/v3"
)

// MaxFileSize is the largest volume file that is read, in bytes.
const MaxFileSize = 1 << 20

// Parse reads all volumes of a file. The name is used in errors and, by its
// ending, to tell formats apart: everything that is not ".hcl" is YAML, of
// which JSON is a part. The error is an [Errors] that lists every mistake
// found; with an error no specs are returned.
func Parse(name string, data []byte) ([]api.VolumeSpec, error) {
	d := &decoder{file: name, lines: 1 + bytes.Count(bytes.TrimRight(data, "\n"), []byte("\n"))}
	switch {
	case len(data) > MaxFileSize:
		d.failAt(1, 1, "the file is larger than 1 MiB")
	case strings.EqualFold(filepath.Ext(name), ".hcl"):
		d.failAt(1, 1, "HCL volume files are not supported by this release; write YAML or JSON with the same field names")
	default:
		return d.parse(data)
	}
	return nil, d.errs
}

// parse walks all documents. A syntax error ends it: nothing after one can be
// placed with certainty.
func (d *decoder) parse(data []byte) ([]api.VolumeSpec, error) {
	var found []located
	dec := yaml.NewDecoder(bytes.NewReader(fromJSON(data)))
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			d.syntax(err)
			break
		}
		found = append(found, d.document(&doc)...)
	}
	if len(found) == 0 && len(d.errs) == 0 {
		d.failAt(1, 1, "the file holds no volume")
	}
	d.duplicateIDs(found)
	if len(d.errs) > 0 {
		return nil, d.errs
	}
	specs := make([]api.VolumeSpec, len(found))
	for i, f := range found {
		specs[i] = f.spec
	}
	return specs, nil
}

// located is a spec and the place of its id.
type located struct {
	spec api.VolumeSpec
	at   *yaml.Node
}

// document reads one document: a volume, or a list of them. An empty document,
// as a trailing "---" makes one, holds nothing.
func (d *decoder) document(doc *yaml.Node) []located {
	if len(doc.Content) == 0 {
		return nil
	}
	root := doc.Content[0]
	if isNull(root) {
		return nil
	}
	if root.Kind != yaml.SequenceNode {
		return []located{d.volume(root)}
	}
	found := make([]located, 0, len(root.Content))
	for _, n := range root.Content {
		found = append(found, d.volume(n))
	}
	return found
}

func (d *decoder) duplicateIDs(found []located) {
	first := map[string]*yaml.Node{}
	for _, f := range found {
		if f.spec.ID == "" {
			continue
		}
		if at, ok := first[f.spec.ID]; ok {
			d.fail(f.at, "volume %q is in this file twice, first in line %d", f.spec.ID, at.Line)
			continue
		}
		first[f.spec.ID] = f.at
	}
}
