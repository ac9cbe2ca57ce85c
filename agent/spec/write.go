package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode"
	"unicode/utf16"

	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/bytesize"
)

// Write returns the text of a volume file that [Parse] can read. An HCL file can contain only one
// volume. In JSON, a single volume becomes an object, and several volumes become a list.
func Write(format string, specs []api.VolumeSpec) ([]byte, error) {
	trees := make([]*yaml.Node, len(specs))
	for i, s := range specs {
		t, err := tree(s)
		if err != nil {
			return nil, fmt.Errorf("cannot write volume %q: %w", s.ID, err)
		}
		trees[i] = t
	}

	switch format {
	case FormatYAML:
		return writeYAML(trees)
	case FormatJSON:
		return writeJSON(trees)
	case FormatHCL:
		if len(trees) != 1 {
			return nil, errors.New("a file in HCL contains exactly one volume")
		}
		return writeHCL(trees[0]), nil
	}

	return nil, fmt.Errorf("unknown format %q of volume files", format)
}

// tree converts a volume to a tree with the fields of a volume file, in the order of the
// documentation.
func tree(s api.VolumeSpec) (*yaml.Node, error) {
	n := mappingNode()
	text := func(name, value string) {
		if value != "" {
			put(n, name, textNode(value))
		}
	}

	texts := func(name string, values map[string]string) {
		if len(values) > 0 {
			put(n, name, textsNode(values))
		}
	}

	bytes := func(name string, size int64) {
		if size > 0 {
			text(name, bytesize.Format(size))
		}
	}

	text("id", s.ID)
	text("plugin_id", s.PluginID)
	text("class", s.Class)
	text("name", s.Name)
	text("external_id", s.ExternalID)
	text("snapshot_id", s.SnapshotID)
	text("clone_id", s.CloneID)
	bytes("capacity_min", s.CapacityMin)
	bytes("capacity_max", s.CapacityMax)

	if len(s.Capabilities) > 0 {
		list := listNode()
		for _, c := range s.Capabilities {
			item := mappingNode()
			put(item, "access_mode", textNode(c.AccessMode))
			put(item, "attachment_mode", textNode(c.AttachmentMode))
			list.Content = append(list.Content, item)
		}
		put(n, "capabilities", list)
	}

	if o := s.MountOptions; o != nil {
		put(n, "mount_options", optionsNode(*o))
	}

	texts("parameters", s.Parameters)
	texts("mutable_parameters", s.Mutable)

	if t := s.Topology; t != nil {
		topology := mappingNode()
		putSegments(topology, "required", t.Required)
		putSegments(topology, "preferred", t.Preferred)
		put(n, "topology_request", topology)
	}

	texts("context", s.Context)
	if len(s.Secrets) > 0 {
		secrets := mappingNode()
		for _, name := range slices.Sorted(maps.Keys(s.Secrets)) {
			ref, err := secretNode(s.Secrets[name])
			if err != nil {
				return nil, err
			}
			put(secrets, name, ref)
		}

		put(n, "secrets", secrets)
	}

	text("reclaim", s.Reclaim)
	text("scope", s.Scope)
	text("boot", s.Boot)
	text("takeover", s.Takeover)
	return n, nil
}

func mappingNode() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"} }
func listNode() *yaml.Node    { return &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"} }

// textNode returns a node for a text. If the text contains a character other than printable ASCII,
// textNode chooses double quotes, so that the encoder writes escapes.
func textNode(s string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s}
	for _, r := range s {
		if r < ' ' || r > '~' {
			n.Style = yaml.DoubleQuotedStyle
		}
	}
	return n
}

func textsNode(values map[string]string) *yaml.Node {
	n := mappingNode()
	for _, name := range slices.Sorted(maps.Keys(values)) {
		put(n, name, textNode(values[name]))
	}
	return n
}

func put(n *yaml.Node, name string, value *yaml.Node) {
	n.Content = append(n.Content, textNode(name), value)
}

func optionsNode(o api.MountOptions) *yaml.Node {
	n := mappingNode()
	if o.FSType != "" {
		put(n, "fs_type", textNode(o.FSType))
	}

	if len(o.MountFlags) > 0 {
		list := listNode()
		list.Style = yaml.FlowStyle
		for _, flag := range o.MountFlags {
			list.Content = append(list.Content, textNode(flag))
		}
		put(n, "mount_flags", list)
	}

	return n
}

func putSegments(n *yaml.Node, name string, topologies []map[string]string) {
	if len(topologies) == 0 {
		return
	}
	list := listNode()
	for _, segments := range topologies {
		list.Content = append(list.Content, textsNode(segments))
	}
	put(n, name, list)
}

// secretNode returns a node for a reference to a secret. The fields of the node have the same names
// as in JSON.
func secretNode(s api.Secret) (*yaml.Node, error) {
	raw, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}

	var values map[string]any
	if err := json.Unmarshal(raw, &values); err != nil {
		return nil, err
	}

	n := mappingNode()
	n.Style = yaml.FlowStyle

	if values["sealed"] != nil {
		n.LineComment = "# not shown: the agent keeps it while the volume is registered; after that, set it again"
	}

	for _, name := range slices.Sorted(maps.Keys(values)) {
		text, isText := values[name].(string)
		switch {
		case name == "sealed":
			put(n, name, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: "true"})
		case isText && slices.Contains([]string{"file", "credential", "env"}, name):
			put(n, name, textNode(text))
		default:
			return nil, errors.New("cannot write a secret to a file: it is not a reference")
		}
	}

	return n, nil
}

func writeYAML(trees []*yaml.Node) ([]byte, error) {
	var b bytes.Buffer
	if len(trees) == 0 {
		return nil, nil // Close returns an error if the encoder has encoded nothing
	}

	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)

	for _, t := range trees {
		if err := enc.Encode(t); err != nil {
			return nil, err
		}
	}

	err := enc.Close()
	return b.Bytes(), err
}

func writeJSON(trees []*yaml.Node) ([]byte, error) {
	var raw, b bytes.Buffer
	if len(trees) == 1 {
		jsonNode(&raw, trees[0])
	} else {
		jsonNode(&raw, &yaml.Node{Kind: yaml.SequenceNode, Content: trees})
	}

	err := json.Indent(&b, raw.Bytes(), "", "  ")
	b.WriteByte('\n')
	return b.Bytes(), err
}

// jsonNode writes a node as JSON and keeps the order of the fields.
func jsonNode(b *bytes.Buffer, n *yaml.Node) {
	switch n.Kind {
	case yaml.MappingNode:
		b.WriteByte('{')
		for i := 0; i < len(n.Content); i += 2 {
			if i > 0 {
				b.WriteByte(',')
			}
			jsonNode(b, n.Content[i])
			b.WriteByte(':')
			jsonNode(b, n.Content[i+1])
		}

		b.WriteByte('}')
	case yaml.SequenceNode:
		b.WriteByte('[')
		for i, item := range n.Content {
			if i > 0 {
				b.WriteByte(',')
			}
			jsonNode(b, item)
		}
		b.WriteByte(']')
	default:
		if n.Tag != "!!str" {
			b.WriteString(n.Value)
			return
		}
		jsonText(b, n.Value)
	}
}

// jsonText writes a text as a JSON string. It escapes characters that are not printable, because
// the YAML parser refuses some characters that JSON allows.
func jsonText(b *bytes.Buffer, s string) {
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(b, `\u%04x`, r)
		}
	}

	b.WriteByte('"')
}
