package spec

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/bytesize"
)

// NodeIDVariable stands for the node id of the host in the name_prefix of a class.
const NodeIDVariable = "${NODE_ID}"

// MaxClassID is the maximum length of the id of a class, in bytes. It is the maximum length of the
// name of a Kubernetes object.
const MaxClassID = 253

// maxNote is the maximum length of a note, in bytes.
const maxNote = 1024

// The fields that the list allow of a class can contain. They are fields of a volume file.
const (
	FieldName         = "name"
	FieldCapabilities = "capabilities"
	FieldFSType       = "fs_type"
	FieldMountFlags   = "mount_flags"
	FieldParameters   = "parameters"
	FieldMutable      = "mutable_parameters"
	FieldTopology     = "topology_request"
	FieldSecrets      = "secrets"
	FieldReclaim      = "reclaim"
	FieldScope        = "scope"
)

// Replaceable lists the fields of a class that a request may replace, if the class allows it.
func Replaceable() []string {
	return []string{
		FieldName, FieldCapabilities, FieldFSType, FieldMountFlags, FieldParameters, FieldMutable,
		FieldTopology, FieldSecrets, FieldReclaim, FieldScope,
	}
}

// ClassDocument describes the class of a class file.
type ClassDocument struct {
	Spec api.ClassSpec

	// Line is the line that names the plugin or the driver, counted from 1.
	Line int
	From Origin

	// Warnings describe settings of a StorageClass that have no effect on this host. Each warning is
	// one sentence.
	Warnings []string
}

// ReadClass reads a class file. The file contains one class, in the agent's own format or as a
// Kubernetes StorageClass. If the class has no id, its id is byDefault. If the file has mistakes,
// ReadClass returns an [Errors] that lists them, and a document that contains only the id. The id is
// empty if it is not valid.
func ReadClass(name string, data []byte, byDefault string) (ClassDocument, error) {
	d := classDecoder{volumeDecoder{newDecoder(name, data)}}
	doc := d.read(data, byDefault)
	if len(d.errs) == 0 {
		return doc, nil
	}

	id := doc.Spec.ID
	if CheckClassID(id) != nil {
		id = ""
	}
	return ClassDocument{Spec: api.ClassSpec{ID: id}}, d.errs
}

var classID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// CheckClassID returns an error if a text is not a valid id of a class. A valid id has 1 to 253
// letters, digits, ".", "_" and "-", and begins with a letter or a digit.
func CheckClassID(id string) error {
	switch {
	case id == "":
		return errors.New("class id is empty")
	case len(id) > MaxClassID:
		return fmt.Errorf("class id %s is %d bytes long, more than %d", quote(id), len(id), MaxClassID)
	case !classID.MatchString(id):
		return fmt.Errorf(`bad class id %s: letters, digits, ".", "_" and "-" are allowed, and the first is a letter or a digit`, quote(id))
	}

	return nil
}

// classDecoder decodes class files.
type classDecoder struct{ volumeDecoder }

// read decodes the only class of a file.
func (d classDecoder) read(data []byte, byDefault string) (doc ClassDocument) {
	doc.Spec.ID = byDefault
	if len(data) > MaxFileSize {
		d.failAt(1, 1, "the file is larger than 1 MiB")
		return doc
	}

	var roots []*yaml.Node
	d.documents(data, 0, 0, func(n *yaml.Node) {
		if len(n.Content) > 0 && !isNull(n.Content[0]) {
			roots = append(roots, n.Content[0])
		}
	})

	switch {
	case len(d.errs) > 0:
		return doc
	case len(roots) == 0:
		d.failAt(1, 1, "the file contains no class")
		return doc
	case len(roots) > 1:
		d.fail(roots[1], "a class file contains one class; move this document to a file of its own")
		return doc
	}

	root := roots[0]
	if given(root, "apiVersion") || given(root, "kind") {
		return storageClassDecoder(d).storageClass(root)
	}
	return d.class(root, byDefault)
}

// classPlaces holds the YAML nodes of the fields that the method together compares.
type classPlaces struct{ plugin, driver, size, prefix *yaml.Node }

// class decodes a class in the agent's own format.
func (d classDecoder) class(n *yaml.Node, byDefault string) ClassDocument {
	var (
		s  api.ClassSpec
		at classPlaces
	)

	ok := d.mapping(n, "a class", fields{
		"id":                 func(n *yaml.Node) { s.ID = d.checked(n, "id", CheckClassID) },
		"note":               func(n *yaml.Node) { s.Note = d.checked(n, "note", checkNote) },
		"plugin_id":          func(n *yaml.Node) { at.plugin, s.PluginID = n, d.checked(n, "plugin_id", CheckPluginID) },
		"driver":             func(n *yaml.Node) { at.driver, s.Driver = n, d.text(n, "driver") },
		"name_prefix":        func(n *yaml.Node) { at.prefix, s.NamePrefix = n, d.checked(n, "name_prefix", checkPrefix) },
		"size":               func(n *yaml.Node) { at.size, s.Size = n, d.classSize(n) },
		"capabilities":       func(n *yaml.Node) { s.Capabilities = d.capabilities(n) },
		"mount_options":      func(n *yaml.Node) { s.MountOptions = d.mountOptions(n) },
		"topology_request":   func(n *yaml.Node) { s.Topology = d.topology(n) },
		"parameters":         func(n *yaml.Node) { s.Parameters = d.texts(n, "parameters") },
		"mutable_parameters": func(n *yaml.Node) { s.Mutable = d.texts(n, "mutable_parameters") },
		"secrets":            func(n *yaml.Node) { s.Secrets = d.references(n) },
		"reclaim":            func(n *yaml.Node) { s.Reclaim = d.oneOf(n, "reclaim", []string{api.ReclaimRetain, api.ReclaimDelete}) },
		"scope":              func(n *yaml.Node) { s.Scope = d.oneOf(n, "scope", []string{api.ScopeHost, api.ScopeShared}) },
		"allow": func(n *yaml.Node) {
			d.list(n, "allow", func(n *yaml.Node) { s.Allow = append(s.Allow, d.oneOf(n, "field in allow", Replaceable())) })
		},
	})

	if s.ID == "" {
		s.ID = byDefault
		if err := CheckClassID(byDefault); err != nil {
			d.fail(n, `%v; the id of a class without "id" is the name of its file`, err)
		}
	}

	if ok {
		d.together(n, &s, at)
	}

	doc := ClassDocument{Spec: s, Line: n.Line}
	for _, named := range []*yaml.Node{at.driver, at.plugin} {
		if named != nil {
			doc.Line = named.Line
		}
	}
	return doc
}

// together reports missing fields, and fields with values that contradict each other.
func (d classDecoder) together(n *yaml.Node, s *api.ClassSpec, at classPlaces) {
	switch {
	case at.plugin == nil && at.driver == nil:
		d.fail(n, `"plugin_id" is missing: it names the plugin that makes the volumes`)
	case at.plugin != nil && at.driver != nil:
		d.fail(at.driver, `"plugin_id" and "driver" are both given: a class needs only one of them`)
	}

	if s.Scope == api.ScopeShared && strings.Contains(s.NamePrefix, NodeIDVariable) {
		d.fail(at.prefix, "%s is not possible with scope: shared, because every host must use the same name for a shared volume", NodeIDVariable)
	}

	low, high, usual := s.Size.Min, s.Size.Max, s.Size.Default
	switch {
	case high > 0 && low > high:
		d.fail(at.size, "size.min %s is more than size.max %s", bytesize.Format(low), bytesize.Format(high))
	case high > 0 && usual > high:
		d.fail(at.size, "size.default %s is more than size.max %s", bytesize.Format(usual), bytesize.Format(high))
	case usual > 0 && usual < low:
		d.fail(at.size, "size.default %s is less than size.min %s", bytesize.Format(usual), bytesize.Format(low))
	}
}

func (d classDecoder) classSize(n *yaml.Node) (s api.ClassSize) {
	d.mapping(n, "size", fields{
		"default": func(n *yaml.Node) { s.Default = d.size(n, "size.default") },
		"min":     func(n *yaml.Node) { s.Min = d.size(n, "size.min") },
		"max":     func(n *yaml.Node) { s.Max = d.size(n, "size.max") },
	})
	return s
}

// references reads the secrets of a class. A class has only references, because the agent shows the
// class to every caller and stores nothing for it. No error message repeats any part of a value.
func (d classDecoder) references(n *yaml.Node) map[string]api.Secret {
	out := map[string]api.Secret{}
	d.pairs(n, "secrets", func(key, value *yaml.Node) {
		s := d.secret(value)
		if _, literal := s.Literal.Reveal(); literal || s.Sealed {
			d.fail(value, "secret %s of a class must be a reference: {file: PATH}, {credential: NAME} or {env: NAME}", quote(key.Value))
		}
		out[key.Value] = s
	})
	return out
}

func checkNote(note string) error {
	switch {
	case len(note) > maxNote:
		return fmt.Errorf("note is %d bytes long, more than %d", len(note), maxNote)
	case !printable(note):
		return errors.New("note must be one line of printable characters")
	}
	return nil
}

// checkPrefix returns an error if a volume id with the prefix is not a valid name.
func checkPrefix(prefix string) error {
	plain := strings.ReplaceAll(prefix, NodeIDVariable, "")
	switch {
	case strings.Contains(plain, "${"):
		return fmt.Errorf("bad name_prefix %s: the only variable is %s", quote(prefix), NodeIDVariable)
	case !printable(plain):
		return fmt.Errorf("bad name_prefix %s: only printable characters are allowed", quote(prefix))
	case len(plain) > MaxID:
		return fmt.Errorf("name_prefix %s is %d bytes long, more than %d", quote(prefix), len(plain), MaxID)
	}
	return nil
}

// WriteClass returns the text of a class file in YAML that [ReadClass] can read.
func WriteClass(s api.ClassSpec) ([]byte, error) {
	n := mappingNode()
	text := func(name, value string) {
		if value != "" {
			put(n, name, textNode(value))
		}
	}

	text("id", s.ID)
	text("note", s.Note)
	text("plugin_id", s.PluginID)
	text("driver", s.Driver)
	text("name_prefix", s.NamePrefix)
	if s.Size != (api.ClassSize{}) {
		put(n, "size", classSizeNode(s.Size))
	}

	// The other fields are those of a volume file, in the same order.
	rest, err := tree(api.VolumeSpec{
		Capabilities: s.Capabilities, MountOptions: s.MountOptions, Parameters: s.Parameters, Mutable: s.Mutable,
		Topology: s.Topology, Secrets: s.Secrets, Reclaim: s.Reclaim, Scope: s.Scope,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot write class %q: %w", s.ID, err)
	}
	n.Content = append(n.Content, rest.Content...)

	if len(s.Allow) > 0 {
		list := listNode()
		list.Style = yaml.FlowStyle
		for _, field := range slices.Sorted(slices.Values(s.Allow)) {
			list.Content = append(list.Content, textNode(field))
		}
		put(n, "allow", list)
	}

	return writeYAML([]*yaml.Node{n})
}

func classSizeNode(s api.ClassSize) *yaml.Node {
	n := mappingNode()
	n.Style = yaml.FlowStyle
	for _, one := range []struct {
		name  string
		bytes int64
	}{{"default", s.Default}, {"min", s.Min}, {"max", s.Max}} {
		if one.bytes > 0 {
			put(n, one.name, textNode(bytesize.Format(one.bytes)))
		}
	}
	return n
}
