package spec

import (
	"maps"
	"path/filepath"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/bytesize"
)

// The default modes of a volume, for a file that specifies none.
const (
	DefaultAccessMode     = "single-node-writer"
	DefaultAttachmentMode = "file-system"
)

// AccessModes lists the access modes, with the most restrictive first.
func AccessModes() []string {
	return []string{
		"single-node-reader-only", DefaultAccessMode, "single-node-single-writer", "single-node-multi-writer",
		"multi-node-reader-only", "multi-node-single-writer", "multi-node-multi-writer",
	}
}

// AttachmentModes lists the attachment modes.
func AttachmentModes() []string { return []string{DefaultAttachmentMode, "block-device"} }

// places holds the YAML nodes of the fields that the method together compares with each other.
type places struct {
	id, plugin, class, external, snapshot, clone, smallest, largest, capabilities, capability *yaml.Node
}

// only returns the element of a list if the list contains exactly one mapping. It returns any other
// node unchanged. JSON files for Nomad contain such a list where HCL files contain a block.
func only(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.SequenceNode && len(n.Content) == 1 && n.Content[0].Kind == yaml.MappingNode {
		return n.Content[0]
	}
	return n
}

// listed returns a list that contains the mapping n. If n is not a mapping, listed returns n.
func listed(n *yaml.Node) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return n
	}
	return &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: n.Line, Column: n.Column, Content: []*yaml.Node{n}}
}

// volumeDecoder decodes volume files in the agent's own format.
type volumeDecoder struct{ *decoder }

// volume decodes one volume.
func (d volumeDecoder) volume(n *yaml.Node) located {
	var (
		s  api.VolumeSpec
		at places
	)
	old := api.Capability{AccessMode: DefaultAccessMode, AttachmentMode: DefaultAttachmentMode}

	if kind := scalarOf(n, "type"); kind.Value == "host" {
		d.fail(kind, hostVolume)
		return located{at: n}
	}

	known := fields{
		"id":               func(n *yaml.Node) { at.id, s.ID = n, d.checked(n, "id", CheckVolumeID) },
		"name":             func(n *yaml.Node) { s.Name = d.text(n, "name") },
		"plugin_id":        func(n *yaml.Node) { at.plugin, s.PluginID = n, d.checked(n, "plugin_id", CheckPluginID) },
		"class":            func(n *yaml.Node) { at.class, s.Class = n, d.checked(n, "class", CheckClassID) },
		"external_id":      func(n *yaml.Node) { at.external, s.ExternalID = n, d.text(n, "external_id") },
		"snapshot_id":      func(n *yaml.Node) { at.snapshot, s.SnapshotID = n, d.text(n, "snapshot_id") },
		"clone_id":         func(n *yaml.Node) { at.clone, s.CloneID = n, d.text(n, "clone_id") },
		"capacity_min":     func(n *yaml.Node) { at.smallest, s.CapacityMin = n, d.size(n, "capacity_min") },
		"capacity_max":     func(n *yaml.Node) { at.largest, s.CapacityMax = n, d.size(n, "capacity_max") },
		"capabilities":     func(n *yaml.Node) { at.capabilities, s.Capabilities = n, d.capabilities(n) },
		"mount_options":    func(n *yaml.Node) { s.MountOptions = d.mountOptions(only(n)) },
		"topology_request": func(n *yaml.Node) { s.Topology = d.topology(only(n)) },
		"parameters":       func(n *yaml.Node) { s.Parameters = d.texts(only(n), "parameters") },
		"context":          func(n *yaml.Node) { s.Context = d.texts(only(n), "context") },
		"secrets":          func(n *yaml.Node) { s.Secrets = d.secrets(only(n)) },
		"reclaim":          func(n *yaml.Node) { s.Reclaim = d.oneOf(n, "reclaim", []string{api.ReclaimRetain, api.ReclaimDelete}) },
		"scope":            func(n *yaml.Node) { s.Scope = d.oneOf(n, "scope", []string{api.ScopeHost, api.ScopeShared}) },
		"boot":             func(n *yaml.Node) { s.Boot = d.oneOf(n, "boot", []string{api.BootWait, api.BootTrustLocal}) },
		"takeover": func(n *yaml.Node) {
			s.Takeover = d.oneOf(n, "takeover", []string{api.TakeoverProven, api.TakeoverNever})
		},
		// These fields occur only in files for Nomad. The field capability is Nomad's name for
		// capabilities. The decoder checks the fields namespace and type, but does not use them.
		"capability": func(n *yaml.Node) { at.capability, s.Capabilities = n, d.capabilities(listed(n)) },
		"namespace":  func(n *yaml.Node) { d.text(n, "namespace") },
		// Releases of Nomad before 1.1 have the modes here, and no capabilities.
		"access_mode":     func(n *yaml.Node) { old.AccessMode = d.oneOf(n, "access_mode", AccessModes()) },
		"attachment_mode": func(n *yaml.Node) { old.AttachmentMode = d.oneOf(n, "attachment_mode", AttachmentModes()) },
		"type":            func(n *yaml.Node) { d.oneOf(n, "type", []string{"csi"}) },

		"mutable_parameters": func(n *yaml.Node) { s.Mutable = d.texts(only(n), "mutable_parameters") },
	}

	if d.mapping(n, "a volume", known) {
		d.together(n, &s, at)
	}

	if s.Capabilities == nil && at.class == nil { // a class has capabilities of its own
		s.Capabilities = []api.Capability{old}
	}

	if at.id == nil {
		at.id = n
	}

	return located{Document: Document{Spec: s}, at: at.id}
}

// together reports missing required fields, and fields with values that contradict each other.
func (d volumeDecoder) together(n *yaml.Node, s *api.VolumeSpec, at places) {
	for _, name := range []string{"id", "plugin_id"} {
		byClass := name == "plugin_id" && at.class != nil
		if !given(n, name) && !byClass {
			d.fail(n, "%q is missing", name)
		}
	}

	switch {
	case at.class != nil && at.plugin != nil:
		d.fail(at.plugin, `"class" and "plugin_id" are both given: the class names the plugin`)
	case at.class != nil && at.external != nil:
		d.fail(at.external, `"class" and "external_id" are both given: a class is for new volumes, and a volume with an external_id exists`)
	}

	if at.snapshot != nil && at.clone != nil {
		later := at.clone
		if at.snapshot.Line > at.clone.Line {
			later = at.snapshot
		}
		d.fail(later, `"snapshot_id" and "clone_id" are both given: a volume is filled from one source`)
	}

	if at.capabilities != nil && at.capability != nil {
		d.fail(at.capability, `"capability" and "capabilities" are both given: they are two names of one field`)
	}

	if s.CapacityMin > 0 && s.CapacityMax > 0 && s.CapacityMin > s.CapacityMax {
		d.fail(at.smallest, `"capacity_min" is more than "capacity_max" in line %d`, at.largest.Line)
	}
}

// checked reads a text and validates it with the function check. It records an error if the text is
// not valid.
func (d volumeDecoder) checked(n *yaml.Node, what string, check func(string) error) string {
	before := len(d.errs)
	s := d.text(n, what)

	if len(d.errs) > before {
		return s
	}

	if err := check(s); err != nil {
		d.fail(n, "%v", err)
	}

	return s
}

func (d volumeDecoder) size(n *yaml.Node, what string) int64 {
	if n.Kind != yaml.ScalarNode || !slices.Contains([]string{"!!str", "!!int", "!!float"}, n.ShortTag()) {
		d.fail(n, "%s must be a size such as 10GiB, not %s", what, kind(n))
		return 0
	}

	size, err := bytesize.Parse(n.Value)
	if err != nil {
		d.fail(n, "%s: %v", what, err)
	}

	return size
}

func (d volumeDecoder) capabilities(n *yaml.Node) []api.Capability {
	caps := []api.Capability{}
	d.list(n, "capabilities", func(item *yaml.Node) {
		c := api.Capability{AccessMode: DefaultAccessMode, AttachmentMode: DefaultAttachmentMode}
		ok := d.mapping(item, "a capability", fields{
			"access_mode":     func(n *yaml.Node) { c.AccessMode = d.oneOf(n, "access_mode", AccessModes()) },
			"attachment_mode": func(n *yaml.Node) { c.AttachmentMode = d.oneOf(n, "attachment_mode", AttachmentModes()) },
		})

		if ok && slices.Contains(caps, c) {
			d.fail(item, "capability %s, %s is given twice", c.AccessMode, c.AttachmentMode)
		}

		caps = append(caps, c)
	})

	if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		d.fail(n, "capabilities is empty: leave it out for %s, %s", DefaultAccessMode, DefaultAttachmentMode)
	}

	return caps
}

func (d volumeDecoder) mountOptions(n *yaml.Node) *api.MountOptions {
	var o api.MountOptions
	d.mapping(n, "mount_options", fields{
		"fs_type": func(n *yaml.Node) { o.FSType = d.text(n, "fs_type") },
		"mount_flags": func(n *yaml.Node) {
			d.list(n, "mount_flags", func(n *yaml.Node) { o.MountFlags = append(o.MountFlags, d.text(n, "a mount flag")) })
		},
	})
	return &o
}

// block returns the value of a mapping whose only field has the given name, if the value is a block
// or a list of blocks. Otherwise the mapping is a topology segment, and block returns nil.
func block(n *yaml.Node, name string) *yaml.Node {
	if n.Kind != yaml.MappingNode || len(n.Content) != 2 || n.Content[0].Value != name || n.Content[1].Kind == yaml.ScalarNode {
		return nil
	}
	return n.Content[1]
}

// segments reads a topology in the form of Nomad's volume specification. Several segments blocks of
// one topology count as one.
func (d volumeDecoder) segments(n *yaml.Node, into *[]map[string]string) {
	d.mapping(n, "topology", fields{
		"segments": func(n *yaml.Node) {
			if n.Kind != yaml.SequenceNode {
				*into = addTopology(*into, d.texts(n, "segments"))
				return
			}

			all := map[string]string{}
			d.list(n, "segments", func(item *yaml.Node) {
				for name, value := range d.texts(item, "segments") {
					if had, ok := all[name]; ok && had != value {
						d.fail(item, "segment %s has two values in one topology: write a topology block for each", quote(name))
					}
					all[name] = value
				}
			})
			*into = addTopology(*into, all)
		},
	})
}

// addTopology adds a topology to a list that does not contain it.
func addTopology(list []map[string]string, segments map[string]string) []map[string]string {
	if slices.ContainsFunc(list, func(known map[string]string) bool { return maps.Equal(known, segments) }) {
		return list
	}
	return append(list, segments)
}

// scalarOf returns the scalar with the given name in a mapping. If there is none, it returns an empty
// node.
func scalarOf(n *yaml.Node, name string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return &yaml.Node{}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name && n.Content[i+1].Kind == yaml.ScalarNode {
			return n.Content[i+1]
		}
	}
	return &yaml.Node{}
}

// hostVolume is the error message for a host volume of Nomad.
const hostVolume = `a host volume of Nomad is not a CSI volume: write type csi and plugin_id local, without Nomad's keys for hosts, or bind-mount an existing directory`

func (d volumeDecoder) topology(n *yaml.Node) *api.TopologyRequest {
	var t api.TopologyRequest
	segments := func(what string, into *[]map[string]string) func(*yaml.Node) {
		return func(n *yaml.Node) {
			d.list(listed(n), what, func(item *yaml.Node) {
				if topology := block(item, "topology"); topology != nil {
					d.list(listed(topology), "topology", func(n *yaml.Node) { d.segments(n, into) })
					return
				}
				*into = append(*into, d.texts(item, what))
			})
		}
	}

	d.mapping(n, "topology_request", fields{
		"required":  segments("required", &t.Required),
		"preferred": segments("preferred", &t.Preferred),
	})

	return &t
}

// noSecret is the error message for a secret that is neither a text nor a reference.
const noSecret = "a secret is a text, in quotes if it looks like another type, or one of {file: PATH}, {credential: NAME}, {env: NAME}, {sealed: true}"

func (d volumeDecoder) secrets(n *yaml.Node) map[string]api.Secret {
	out := map[string]api.Secret{}
	d.pairs(n, "secrets", func(key, value *yaml.Node) {
		out[key.Value] = d.secret(value)
	})
	return out
}

// secret reads a secret, which is either a value or a reference to one. No error message repeats
// any part of the node, because the user may have written the secret's value in the wrong place.
func (d volumeDecoder) secret(n *yaml.Node) api.Secret {
	var s api.Secret
	if d.isText(n) && n.Anchor == "" && n.Style&yaml.TaggedStyle == 0 {
		s.Literal = api.NewLiteral(n.Value)
		return s
	}

	if n.Kind != yaml.MappingNode || len(n.Content) != 2 || n.Anchor != "" || n.Style&yaml.TaggedStyle != 0 {
		d.fail(n, noSecret)
		return s
	}

	key, value := n.Content[0], n.Content[1]
	if key.Value == "sealed" && value.ShortTag() == "!!bool" && value.Value == "true" && value.Anchor == "" {
		s.Sealed = true
		return s
	}

	into := map[string]*string{"file": &s.File, "credential": &s.Credential, "env": &s.Env}[key.Value]
	switch {
	case into == nil || value.Kind != yaml.ScalarNode || value.ShortTag() != "!!str" || value.Value == "":
		d.fail(n, noSecret)
	case value.Anchor != "" || value.Style&yaml.TaggedStyle != 0:
		d.fail(n, noAnchors)
	case key.Value == "file" && !filepath.IsAbs(value.Value):
		d.fail(value, "the file of a secret must be an absolute path")
	default:
		*into = value.Value
	}

	return s
}
