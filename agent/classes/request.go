package classes

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/volmgr/bytesize"
	"github.com/volagent/volagent/volmgr/volume"
)

// maxName is the maximum length of the name that the agent suggests to a plugin, in bytes. See the
// section "Size Limits" of the CSI spec.
const maxName = 128

// class is a class in use on this host.
type class struct {
	api.ClassSpec
	plugin string // the id of the plugin that creates the volumes
	node   string // the node id of the host
	file   string
}

// combine returns the specification of a volume with the properties of a class. The request decides
// about fields that the class does not have. A request with another value for a field of the class
// is refused, unless the class allows it.
func combine(c class, request api.VolumeSpec) (api.VolumeSpec, error) {
	m := merger{class: c}
	out := request

	out.PluginID = c.plugin
	if request.PluginID != "" && request.PluginID != c.plugin {
		m.refuse("plugin_id", "plugin_id", c.plugin, request.PluginID)
	}
	if err := m.name(&out, request); err != nil {
		return api.VolumeSpec{}, err
	}

	out.Capabilities = m.capabilities(request.Capabilities)
	out.MountOptions = m.mountOptions(request.MountOptions, out.Capabilities)
	out.Parameters = m.texts(spec.FieldParameters, c.Parameters, request.Parameters)
	out.Mutable = m.texts(spec.FieldMutable, c.Mutable, request.Mutable)
	out.Topology = m.topology(request.Topology)
	out.Secrets = m.secrets(request.Secrets)
	out.Reclaim = m.word(spec.FieldReclaim, c.Reclaim, request.Reclaim)
	out.Scope = m.word(spec.FieldScope, c.Scope, request.Scope)

	if err := m.refusal(); err != nil {
		return api.VolumeSpec{}, err
	}
	return sized(c, out)
}

// merger combines a class with a request, and collects the fields that the request may not replace.
type merger struct {
	class
	differ []string // "field: value of the class → value of the request"
	fields []string // the names of these fields in allow
}

// may reports whether a request may replace a field of the class.
func (m *merger) may(field string) bool { return slices.Contains(m.Allow, field) }

// refuse records that the request has another value than the class.
func (m *merger) refuse(field, shown string, class, request any) {
	m.differ = append(m.differ, volume.FieldChange(shown, class, request))
	if slices.Contains(spec.Replaceable(), field) && !slices.Contains(m.fields, field) {
		m.fields = append(m.fields, field)
	}
}

// refusal returns the error for all recorded fields.
func (m *merger) refusal() error {
	if len(m.differ) == 0 {
		return nil
	}

	err := volume.Errorf(volume.ErrRefused, "class %q fixes values that the request changes: %s", m.ID, strings.Join(m.differ, "; "))
	if len(m.fields) == 0 {
		return err.WithHint("leave it out, or choose another class: volctl class list")
	}
	return err.WithHint("leave it out, or permit it in %s: allow: [%s]", m.file, strings.Join(m.fields, ", "))
}

// word returns the value of a field with one word.
func (m *merger) word(field, class, request string) string {
	switch {
	case class == "" || request == class:
		return request
	case request == "":
		return class
	case !m.may(field):
		m.refuse(field, field, class, request)
	}
	return request
}

// name sets the name that the agent suggests to the plugin.
func (m *merger) name(out *api.VolumeSpec, request api.VolumeSpec) error {
	if m.NamePrefix == "" {
		return nil
	}

	scope := cmp.Or(request.Scope, m.Scope)
	if scope == api.ScopeShared && strings.Contains(m.NamePrefix, spec.NodeIDVariable) {
		return volume.Errorf(volume.ErrRefused, "class %q makes no shared volumes: its name_prefix contains %s, but every host must use the same name for a shared volume", m.ID, spec.NodeIDVariable).
			WithHint("volctl class list")
	}

	prefixed := strings.ReplaceAll(m.NamePrefix, spec.NodeIDVariable, m.node) + request.ID
	out.Name = m.word(spec.FieldName, prefixed, request.Name)
	if len(out.Name) > maxName {
		return volume.Errorf(volume.ErrRefused, "with the name_prefix of class %q, the name of volume %q has %d bytes; plugins accept %d", m.ID, request.ID, len(out.Name), maxName).
			WithHint("choose a shorter id")
	}
	return nil
}

// capabilities returns the capabilities of the class that the request selects.
func (m *merger) capabilities(request []api.Capability) []api.Capability {
	if len(m.Capabilities) == 0 {
		return request
	}

	selected, ok := choose(m.Capabilities, request)
	switch {
	case ok:
		return selected
	case !m.may(spec.FieldCapabilities):
		m.refuse(spec.FieldCapabilities, spec.FieldCapabilities, described(m.Capabilities), described(request))
	}
	return request
}

// choose returns the offered capabilities that match one of the wanted ones. An empty mode matches
// every mode. Without wanted capabilities, choose returns all. The result ok is false if there is no
// match for one of them.
func choose(offered, wanted []api.Capability) (chosen []api.Capability, ok bool) {
	matches := func(offer, want api.Capability) bool {
		access := want.AccessMode == "" || want.AccessMode == offer.AccessMode
		attachment := want.AttachmentMode == "" || want.AttachmentMode == offer.AttachmentMode
		return access && attachment
	}

	for _, want := range wanted {
		if !slices.ContainsFunc(offered, func(offer api.Capability) bool { return matches(offer, want) }) {
			return nil, false
		}
	}
	for _, offer := range offered {
		if len(wanted) == 0 || slices.ContainsFunc(wanted, func(want api.Capability) bool { return matches(offer, want) }) {
			chosen = append(chosen, offer)
		}
	}
	return chosen, true
}

// described returns capabilities as a text for an error.
func described(all []api.Capability) string {
	texts := make([]string, len(all))
	for i, c := range all {
		texts[i] = cmp.Or(c.AccessMode, spec.DefaultAccessMode) + ", " + cmp.Or(c.AttachmentMode, spec.DefaultAttachmentMode)
	}
	return strings.Join(texts, "; ")
}

// mountOptions returns the mount options. A volume that is only a block device has none.
func (m *merger) mountOptions(request *api.MountOptions, capabilities []api.Capability) *api.MountOptions {
	fileSystem := func(c api.Capability) bool {
		return cmp.Or(c.AttachmentMode, spec.DefaultAttachmentMode) == spec.DefaultAttachmentMode
	}
	if m.MountOptions == nil || len(capabilities) > 0 && !slices.ContainsFunc(capabilities, fileSystem) {
		return request
	}

	var asked api.MountOptions
	if request != nil {
		asked = *request
	}
	out := api.MountOptions{FSType: m.word(spec.FieldFSType, m.MountOptions.FSType, asked.FSType), MountFlags: asked.MountFlags}

	had := m.MountOptions.MountFlags
	switch {
	case len(had) == 0 || slices.Equal(had, asked.MountFlags):
	case len(asked.MountFlags) == 0:
		out.MountFlags = had
	case !m.may(spec.FieldMountFlags):
		m.refuse(spec.FieldMountFlags, spec.FieldMountFlags, had, asked.MountFlags)
	}
	return &out
}

// texts returns the values by name of the class and of the request.
func (m *merger) texts(field string, class, request map[string]string) map[string]string {
	if len(class) == 0 {
		return request
	}

	out := maps.Clone(class)
	for _, name := range slices.Sorted(maps.Keys(request)) {
		had, fixed := class[name]
		if fixed && had != request[name] && !m.may(field) {
			m.refuse(field, field+"."+name, had, request[name])
		}
		out[name] = request[name]
	}
	return out
}

// secrets returns the references of the class and of the request. The error names only the secret.
func (m *merger) secrets(request map[string]api.Secret) map[string]api.Secret {
	if len(m.Secrets) == 0 {
		return request
	}

	out := maps.Clone(m.Secrets)
	for _, name := range slices.Sorted(maps.Keys(request)) {
		had, fixed := m.Secrets[name]
		if fixed && !reflect.DeepEqual(had, request[name]) && !m.may(spec.FieldSecrets) {
			m.refuse(spec.FieldSecrets, spec.FieldSecrets+"."+name, "of the class", "of the request")
		}
		out[name] = request[name]
	}
	return out
}

func (m *merger) topology(request *api.TopologyRequest) *api.TopologyRequest {
	switch {
	case m.Topology == nil || reflect.DeepEqual(m.Topology, request):
		return request
	case request == nil:
		return m.Topology
	case !m.may(spec.FieldTopology):
		m.refuse(spec.FieldTopology, spec.FieldTopology, *m.Topology, *request)
	}
	return request
}

// sized sets the size of a volume, and refuses a size outside the limits of the class.
func sized(c class, out api.VolumeSpec) (api.VolumeSpec, error) {
	least, most := c.Size.Min, c.Size.Max
	if out.CapacityMin == 0 {
		out.CapacityMin = cmp.Or(c.Size.Default, least)
	}

	size := func(bytes int64) string { return bytesize.Format(bytes) }
	switch asked := out.CapacityMin; {
	case asked == 0 && out.CapacityMax == 0 && most > 0:
		return out, volume.Errorf(volume.ErrRefused, "class %q needs a size: at most %s", c.ID, size(most)).WithHint("give the size of the volume")
	case most > 0 && asked > most:
		return out, volume.Errorf(volume.ErrRefused, "%s is more than class %q permits: at most %s", size(asked), c.ID, size(most)).WithHint("volctl class list")
	case most > 0 && out.CapacityMax > most:
		return out, volume.Errorf(volume.ErrRefused, "capacity_max %s is more than class %q permits: at most %s", size(out.CapacityMax), c.ID, size(most)).WithHint("volctl class list")
	case asked < least:
		return out, volume.Errorf(volume.ErrRefused, "%s is less than class %q permits: at least %s", size(asked), c.ID, size(least)).WithHint("volctl class list")
	}
	return out, nil
}

// Again returns the specification for a repeated request to create a volume that was created with
// the same class. Fields that the request leaves out have the values of the existing volume. A later
// change of the class therefore makes no existing volume differ from its request.
func (*Classes) Again(had, request api.VolumeSpec) api.VolumeSpec {
	out := had
	out.Class, out.ExternalID, out.Context = request.Class, "", nil
	out.Name, out.PluginID = cmp.Or(request.Name, had.Name), cmp.Or(request.PluginID, had.PluginID)
	out.CapacityMin, out.CapacityMax = cmp.Or(request.CapacityMin, had.CapacityMin), request.CapacityMax
	out.Reclaim, out.Scope = cmp.Or(request.Reclaim, had.Reclaim), cmp.Or(request.Scope, had.Scope)
	out.Boot, out.Takeover = cmp.Or(request.Boot, had.Boot), cmp.Or(request.Takeover, had.Takeover)
	out.Topology, out.Mutable = cmp.Or(request.Topology, had.Topology), request.Mutable
	if request.SnapshotID != "" || request.CloneID != "" {
		out.SnapshotID, out.CloneID = request.SnapshotID, request.CloneID
	}

	if _, ok := choose(had.Capabilities, request.Capabilities); !ok {
		out.Capabilities = request.Capabilities
	}
	if request.MountOptions != nil {
		out.MountOptions = optionsAgain(had.MountOptions, *request.MountOptions)
	}

	out.Parameters = overlaid(had.Parameters, request.Parameters)
	out.Secrets = overlaid(had.Secrets, request.Secrets)
	return out
}

func optionsAgain(had *api.MountOptions, request api.MountOptions) *api.MountOptions {
	if had == nil {
		return &request
	}

	out := *had
	out.FSType = cmp.Or(request.FSType, had.FSType)
	if len(request.MountFlags) > 0 {
		out.MountFlags = request.MountFlags
	}
	return &out
}

// overlaid returns the values of both maps. A value in over takes precedence.
func overlaid[T any](under, over map[string]T) map[string]T {
	if len(over) == 0 {
		return under
	}

	out := map[string]T{}
	maps.Copy(out, under)
	maps.Copy(out, over)
	return out
}
