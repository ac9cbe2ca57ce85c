package spec

import (
	"maps"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/agent/api"
)

// redacted is the text that Nomad prints in place of a hidden value.
const redacted = "[REDACTED]"

// nomadVolume holds the decoded fields of a volume in Nomad's output.
type nomadVolume struct {
	spec             api.VolumeSpec
	id               *yaml.Node
	driver           string
	access, attached string            // the current access and attachment modes
	claims           []string          // the ids of the allocations that claim the volume
	jobs             map[string]string // maps allocation ids to job ids
	secrets          []string          // the names of the secrets whose values Nomad hides
	hidden           bool              // whether Nomad hides mount flags
	topologies       bool
}

// nomadDecoder decodes volume files of Nomad.
type nomadDecoder struct{ volumeDecoder }

// answer decodes a request or an answer of Nomad's API with several volumes.
func (d nomadDecoder) answer(n *yaml.Node) {
	d.some(n, "an answer of Nomad", fields{
		"Volumes": func(n *yaml.Node) {
			d.list(n, "Volumes", func(item *yaml.Node) {
				if given(item, "ID") {
					d.found = append(d.found, d.nomad(item))
					return
				}
				d.fail(item, `"ID" is missing: a list of the storage of a plugin does not describe volumes of Nomad`)
			})
		},
	})
}

// nomad decodes a volume with the field names of Nomad's API: the output of "nomad volume status -json
// ID", or a request that registers a volume. An object without an external id is a request that
// creates a volume. It is like a file in the agent's own format. nomad ignores unknown fields, because the fields vary between versions of Nomad.
func (d nomadDecoder) nomad(n *yaml.Node) located {
	v := nomadVolume{jobs: map[string]string{}}
	claims := func(n *yaml.Node) {
		d.pairs(n, "allocations", func(key, _ *yaml.Node) { v.claims = append(v.claims, key.Value) })
	}

	d.some(n, "a volume", fields{
		"ID":                    func(n *yaml.Node) { v.id, v.spec.ID = n, d.checked(n, "ID", CheckVolumeID) },
		"Name":                  func(n *yaml.Node) { v.spec.Name = d.maybe(n, "Name") },
		"ExternalID":            func(n *yaml.Node) { v.spec.ExternalID = d.maybe(n, "ExternalID") },
		"PluginID":              func(n *yaml.Node) { v.spec.PluginID = d.checked(n, "PluginID", CheckPluginID) },
		"Provider":              func(n *yaml.Node) { v.driver = d.maybe(n, "Provider") },
		"CloneID":               func(n *yaml.Node) { v.spec.CloneID = d.maybe(n, "CloneID") },
		"SnapshotID":            func(n *yaml.Node) { v.spec.SnapshotID = d.maybe(n, "SnapshotID") },
		"RequestedCapacityMin":  func(n *yaml.Node) { v.spec.CapacityMin = d.bytes(n, "RequestedCapacityMin") },
		"RequestedCapacityMax":  func(n *yaml.Node) { v.spec.CapacityMax = d.bytes(n, "RequestedCapacityMax") },
		"RequestedCapabilities": func(n *yaml.Node) { v.spec.Capabilities = d.nomadCapabilities(n) },
		"Context":               func(n *yaml.Node) { v.spec.Context = d.texts(n, "Context") },
		"Parameters":            func(n *yaml.Node) { v.spec.Parameters = d.texts(n, "Parameters") },
		"MountOptions":          func(n *yaml.Node) { d.nomadMount(n, &v) },
		"RequestedTopologies":   func(n *yaml.Node) { v.spec.Topology = d.nomadTopology(n) },
		"Topologies":            func(n *yaml.Node) { v.topologies = len(n.Content) > 0 },
		"AccessMode":            func(n *yaml.Node) { v.access = d.maybe(n, "AccessMode") },
		"AttachmentMode":        func(n *yaml.Node) { v.attached = d.maybe(n, "AttachmentMode") },
		"Secrets": func(n *yaml.Node) {
			d.pairs(n, "Secrets", func(key, value *yaml.Node) { d.nomadSecret(key, value, &v) })
		},
		"ReadAllocs":  claims,
		"WriteAllocs": claims,
		"Allocations": func(n *yaml.Node) { d.list(n, "Allocations", func(n *yaml.Node) { d.nomadAlloc(n, v.jobs) }) },
	})

	if v.id == nil {
		v.id = n
	}

	if scalarOf(n, "Type").Value == "host" || given(n, "HostPath") || given(n, "NodePool") {
		d.fail(v.id, hostVolume)
		return located{at: v.id}
	}
	if !given(n, "PluginID") {
		d.fail(v.id, `"PluginID" is missing: only a CSI volume of Nomad can be used here`)
		return located{at: v.id}
	}

	if !slices.ContainsFunc([]string{"RequestedCapabilities", "Context", "Parameters"}, func(name string) bool { return mentions(n, name) }) {
		d.fail(v.id, "this is an entry of a list of Nomad, which omits fields: use the output of nomad volume status -json ID for each volume")
	}

	d.nomadModes(&v)
	if v.spec.ExternalID == "" {
		if v.hidden || len(v.secrets) > 0 {
			d.fail(v.id, "Nomad hides secrets or mount flags of this volume (%s): write the values into the file", redacted)
		}
		return located{Document: Document{Spec: v.spec}, at: v.id}
	}

	doc := Document{Spec: v.spec, From: Nomad, Driver: v.driver, FlagsHidden: v.hidden, Warnings: v.warnings()}
	return located{Document: doc, at: v.id}
}

// nomadSecret reads a secret. In Nomad's output, the value is hidden.
func (d nomadDecoder) nomadSecret(key, value *yaml.Node, v *nomadVolume) {
	if isNull(value) || value.Value == redacted {
		v.secrets = append(v.secrets, shortened(key.Value))
		return
	}
	if !d.isText(value) {
		d.fail(value, noSecret)
		return
	}

	if v.spec.Secrets == nil {
		v.spec.Secrets = map[string]api.Secret{}
	}
	v.spec.Secrets[key.Value] = api.Secret{Literal: api.NewLiteral(value.Value)}
}

// mentions reports whether a mapping has a field, even with the value null.
func mentions(n *yaml.Node, name string) bool {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return true
		}
	}
	return false
}

// maybe decodes a string that may also be empty.
func (d nomadDecoder) maybe(n *yaml.Node, what string) string {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" {
		return n.Value
	}
	return d.text(n, what)
}

// bytes reads a number of bytes. In Nomad's output, 0 means that no number was set.
func (d nomadDecoder) bytes(n *yaml.Node, what string) int64 {
	size, err := strconv.ParseInt(n.Value, 10, 64)
	if n.Kind != yaml.ScalarNode || err != nil || size < 0 {
		d.fail(n, "%s must be a number of bytes", what)
	}
	return max(size, 0)
}

func (d nomadDecoder) nomadCapabilities(n *yaml.Node) []api.Capability {
	var caps []api.Capability
	d.list(n, "RequestedCapabilities", func(item *yaml.Node) {
		c := api.Capability{AccessMode: DefaultAccessMode, AttachmentMode: DefaultAttachmentMode}
		d.some(item, "a capability", fields{
			"AccessMode":     func(n *yaml.Node) { c.AccessMode = d.oneOf(n, "AccessMode", AccessModes()) },
			"AttachmentMode": func(n *yaml.Node) { c.AttachmentMode = d.oneOf(n, "AttachmentMode", AttachmentModes()) },
		})
		if !slices.Contains(caps, c) {
			caps = append(caps, c)
		}
	})

	return caps
}

// nomadModes adds a capability with the current modes to a volume that has no capabilities. Old
// versions of Nomad registered volumes without capabilities.
func (d nomadDecoder) nomadModes(v *nomadVolume) {
	if len(v.spec.Capabilities) > 0 {
		return
	}

	c := api.Capability{AccessMode: DefaultAccessMode, AttachmentMode: DefaultAttachmentMode}
	if slices.Contains(AccessModes(), v.access) {
		c.AccessMode = v.access
	}

	if slices.Contains(AttachmentModes(), v.attached) {
		c.AttachmentMode = v.attached
	}

	v.spec.Capabilities = []api.Capability{c}
}

func (d nomadDecoder) nomadMount(n *yaml.Node, v *nomadVolume) {
	var o api.MountOptions
	d.some(n, "MountOptions", fields{
		"FSType": func(n *yaml.Node) { o.FSType = d.maybe(n, "FSType") },
		"MountFlags": func(n *yaml.Node) {
			d.list(n, "MountFlags", func(n *yaml.Node) {
				if n.Value == redacted {
					v.hidden = true
					return
				}
				o.MountFlags = append(o.MountFlags, d.text(n, "a mount flag"))
			})
		},
	})

	if o.FSType != "" || len(o.MountFlags) > 0 {
		v.spec.MountOptions = &o
	}
}

func (d nomadDecoder) nomadTopology(n *yaml.Node) *api.TopologyRequest {
	var t api.TopologyRequest
	topologies := func(what string, into *[]map[string]string) func(*yaml.Node) {
		return func(n *yaml.Node) {
			d.list(n, what, func(item *yaml.Node) {
				d.some(item, what, fields{"Segments": func(n *yaml.Node) { *into = addTopology(*into, d.texts(n, "Segments")) }})
			})
		}
	}

	d.some(n, "RequestedTopologies", fields{
		"Required":  topologies("Required", &t.Required),
		"Preferred": topologies("Preferred", &t.Preferred),
	})

	if len(t.Required)+len(t.Preferred) == 0 {
		return nil
	}

	return &t
}

// nomadAlloc records which job an allocation belongs to. Nomad also lists allocations that have
// ended, so an entry in this list is not evidence of a claim.
func (d nomadDecoder) nomadAlloc(n *yaml.Node, jobs map[string]string) {
	var id, job string
	d.some(n, "an allocation", fields{
		"ID":    func(n *yaml.Node) { id = d.maybe(n, "ID") },
		"JobID": func(n *yaml.Node) { job = d.maybe(n, "JobID") },
	})
	jobs[id] = job
}

// warnings returns warnings that tell the operator what to do before claiming the volume on this
// host.
func (v *nomadVolume) warnings() []string {
	said := "first deregister the volume in Nomad: nomad volume deregister " + shortened(v.spec.ID)
	if len(v.claims) > 0 {
		holders := map[string]bool{}
		for _, id := range v.claims {
			holder := shortened(id[:min(8, len(id))])
			if job := v.jobs[id]; job != "" {
				holder += " (job " + shortened(job) + ")"
			}
			holders[holder] = true
		}

		said += ". Allocations that claim the volume in Nomad: " + joined(slices.Sorted(maps.Keys(holders)))
	}

	all := []string{said}
	switch {
	case len(v.secrets) > 0:
		all = append(all, "Nomad does not show the volume's secrets ("+joined(v.secrets)+"): export the volume to a file, add the secrets, and register that file")
	case len(v.spec.Secrets) == 0:
		all = append(all, "Nomad does not show secrets: if the volume has secrets, export it to a file, add them, and register that file")
	}

	if v.hidden {
		all = append(all, "Nomad does not show the volume's mount flags: they are omitted here")
	}

	if v.topologies {
		all = append(all, "the agent ignores the volume's topology in Nomad: check that this host can reach the storage")
	}

	return all
}
