package dockervol

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// options are the parsed options of a Create.
type options struct {
	volume   string // id of the registered volume; empty means that the name is the id
	plugin   string // plugin that creates the volume
	class    string // class that describes the volume, in place of the plugin
	readOnly bool
	writable bool // the option "rw" is set
	excl     bool
	access   call.AccessMode
	own      volume.Ownership

	// The following fields describe a new volume.
	size    int64
	fsType  string
	flags   []string
	reclaim string
	params  map[string]string
	making  []string // names of the given options that describe a new volume
}

// known contains the option names that the error for an unknown option lists.
var known = []string{
	"volume", "device", "plugin", "class", "size", "fs_type", "mount_flags", "access_mode", "reclaim", "param.NAME", "parameters",
	"ro", "rw", "exclusive", "uid", "gid", "mode", "o",
}

// optionParser parses the options of a Create.
type optionParser struct {
	size func(string) (int64, error) // parses a size and returns the number of bytes
}

// parse parses the options of a Create. The option "o" contains further options, separated by
// commas, because compose files and podman use this form. An option may appear twice if the value
// is the same.
func (p optionParser) parse(opts map[string]string) (options, error) {
	flat, err := flatten(opts)
	if err != nil {
		return options{}, err
	}

	var o options
	for _, name := range slices.Sorted(maps.Keys(flat)) {
		if err := p.set(&o, name, flat[name]); err != nil {
			return options{}, err
		}
	}

	switch {
	case o.readOnly && (o.writable || denies(flat, "ro")):
		return o, volume.Errorf(volume.ErrInvalid, "ro and rw contradict each other")
	case o.plugin != "" && o.volume != "":
		return o, volume.Errorf(volume.ErrInvalid, "volume and plugin exclude each other: volume uses a registered volume, and plugin creates a new one")
	case o.class != "" && o.volume != "":
		return o, volume.Errorf(volume.ErrInvalid, "volume and class exclude each other: volume uses a registered volume, and class creates a new one")
	case o.class != "" && o.plugin != "":
		return o, volume.Errorf(volume.ErrInvalid, "plugin and class exclude each other: the class names the plugin")
	case !o.creates() && len(o.making) > 0:
		return o, volume.Errorf(volume.ErrInvalid, "%s apply only to a new volume", strings.Join(o.making, ", ")).
			WithHint("give the plugin that creates it: -o plugin=NAME, or a class: -o class=NAME")
	}

	return o, o.own.Check()
}

// paramPrefix is the prefix of an option that sets a parameter of the plugin.
const paramPrefix = "param."

// cutParam returns the name of the parameter if the option sets one.
func cutParam(name string) (param string, is bool) {
	if len(name) < len(paramPrefix) || !strings.EqualFold(name[:len(paramPrefix)], paramPrefix) {
		return "", false
	}
	return name[len(paramPrefix):], true
}

// flatten merges the options inside "o" and "parameters" with the other options. It converts option
// names to lower case, because podman writes some in capitals. The names of parameters keep their
// case.
func flatten(opts map[string]string) (map[string]string, error) {
	flat := map[string]string{}
	add := func(name, value string) error {
		if param, is := cutParam(name); is {
			name = paramPrefix + param
		} else {
			name = strings.ToLower(name)
		}

		if had, twice := flat[name]; twice && had != value {
			return volume.Errorf(volume.ErrInvalid, "option %q is given twice, as %q and as %q", name, had, value)
		}

		flat[name] = value
		return nil
	}

	for _, name := range slices.Sorted(maps.Keys(opts)) {
		value, prefix := opts[name], ""
		switch strings.ToLower(name) {
		case "o":
		case "parameters":
			prefix = paramPrefix
		default:
			if err := add(name, value); err != nil {
				return nil, err
			}
			continue
		}

		for piece := range strings.SplitSeq(value, ",") {
			key, v, named := strings.Cut(piece, "=")
			switch {
			case piece == "":
				continue
			case prefix != "" && !named, strings.EqualFold(key, "o"):
				return nil, volume.Errorf(volume.ErrInvalid, "option %q contains %q, which is not name=value", name, piece)
			}
			if err := add(prefix+key, v); err != nil {
				return nil, err
			}
		}
	}

	return flat, nil
}

// set sets one option.
func (p optionParser) set(o *options, name, value string) (err error) {
	if param, is := strings.CutPrefix(name, paramPrefix); is {
		if o.params == nil {
			o.params = map[string]string{}
		}
		o.params[param], o.making = value, append(o.making, name)
		return nil
	}

	switch name {
	case "volume", "device":
		if o.volume != "" && o.volume != value {
			return volume.Errorf(volume.ErrInvalid, "volume and device are the same option, but have the values %q and %q", value, o.volume)
		}

		o.volume = value
		return volume.CheckID(name, value)
	case "plugin":
		o.plugin = value
		return volume.CheckPluginID(value)
	case "class":
		if o.class = value; value == "" {
			return volume.Errorf(volume.ErrInvalid, "option %q needs the name of a class", name).WithHint("volctl class list")
		}
	case "ro":
		o.readOnly, err = yes(name, value)
	case "rw":
		o.writable, err = yes(name, value)
		o.readOnly = o.readOnly || !o.writable
	case "exclusive":
		o.excl, err = yes(name, value)
	case "access_mode":
		o.access = call.AccessMode(value)
		err = volume.CheckCapability(call.Capability{Access: o.access, Attachment: call.FileSystem})
	case "uid":
		o.own.UID = value
	case "gid":
		o.own.GID = value
	case "mode":
		if o.own.Mode = value; value != "" {
			if m, err := strconv.ParseUint(value, 8, 32); err == nil {
				o.own.Mode = fmt.Sprintf("%04o", m)
			}
		}
	default:
		return p.setMaking(o, name, value)
	}

	return err
}

// setMaking sets an option that describes a new volume.
func (p optionParser) setMaking(o *options, name, value string) (err error) {
	o.making = append(o.making, name)
	switch name {
	case "size":
		if o.size, err = p.size(value); err != nil {
			return volume.Errorf(volume.ErrInvalid, "%v", err)
		}
	case "fs_type":
		o.fsType = value
	case "mount_flags":
		o.flags = strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ':' })
	case "reclaim":
		o.reclaim = value
	default:
		return volume.Errorf(volume.ErrInvalid, "unknown option %q", name).
			WithHint("valid options: %s; a parameter of the plugin is param.%s", strings.Join(known, ", "), name)
	}

	return nil
}

// yes parses a boolean option. An empty value means true.
func yes(name, value string) (bool, error) {
	switch strings.ToLower(value) {
	case "", "true", "yes", "1":
		return true, nil
	case "false", "no", "0":
		return false, nil
	default:
		return false, volume.Errorf(volume.ErrInvalid, "option %q must be true or false, not %q", name, value)
	}
}

// denies reports whether a boolean option is set to false.
func denies(flat map[string]string, name string) bool {
	value, given := flat[name]
	on, err := yes(name, value)
	return given && err == nil && !on
}

// named returns the runtime's volume that the options describe.
func (o options) named(runtime, name string) volume.RuntimeVolume {
	v := volume.RuntimeVolume{
		Runtime: runtime, Name: name, VolumeID: o.volume, ReadOnly: o.readOnly, Exclusive: o.excl, Access: o.access, Own: o.own,
	}
	if v.VolumeID == "" {
		v.VolumeID = name
	}
	return v
}

// creates reports whether the options describe a new volume.
func (o options) creates() bool { return o.plugin != "" || o.class != "" }

// spec returns the specification of a new volume. With a class, it contains only the fields that the options
// name, because the class decides about the rest. Containers need a file system.
func (o options) spec(id string) api.VolumeSpec {
	if o.class != "" {
		s := api.VolumeSpec{
			ID: id, Class: o.class, CapacityMin: o.size, Parameters: o.params, Reclaim: o.reclaim,
			Capabilities: []api.Capability{{AccessMode: string(o.access), AttachmentMode: string(call.FileSystem)}},
		}
		if o.fsType != "" || len(o.flags) > 0 {
			s.MountOptions = &api.MountOptions{FSType: o.fsType, MountFlags: o.flags}
		}
		return s
	}

	return api.VolumeSpec{
		ID: id, Name: id, PluginID: o.plugin, CapacityMin: o.size, Capabilities: []api.Capability{{AccessMode: string(o.access)}},
		MountOptions: &api.MountOptions{FSType: o.fsType, MountFlags: o.flags}, Parameters: o.params, Reclaim: o.reclaim,
	}
}

// differs compares the options with an existing volume. It returns a text of the form "option: old
// → new" for each difference.
func (o options) differs(v volume.Volume) (texts []string) {
	unless := func(agree bool, name string, old, now any) {
		if !agree {
			texts = append(texts, volume.FieldChange(name, old, now))
		}
	}

	has := max(v.Capacity, v.CapacityMin)
	unless(o.plugin == "" || o.plugin == v.PluginID, "plugin", v.PluginID, o.plugin)
	// A volume without a class may have been created with one by an older agent.
	unless(o.class == "" || v.Class == "" || o.class == v.Class, "class", v.Class, o.class)
	if o.size > has {
		texts = append(texts, "size: "+volume.Size(has)+" → "+volume.Size(o.size))
	}
	unless(o.fsType == "" || o.fsType == v.MountOptions.FSType, "fs_type", v.MountOptions.FSType, o.fsType)
	unless(o.flags == nil || slices.Equal(o.flags, v.MountOptions.MountFlags), "mount_flags", v.MountOptions.MountFlags, o.flags)
	unless(o.reclaim == "" || o.reclaim == v.Reclaim, "reclaim", v.Reclaim, o.reclaim)
	offers := func(c call.Capability) bool { return c.Access == o.access }
	unless(o.access == "" || slices.ContainsFunc(v.Capabilities, offers), "access_mode", v.Capabilities, o.access)

	for _, name := range slices.Sorted(maps.Keys(o.params)) {
		had, ok := v.Parameters[name]
		if shown := strconv.Quote(had); !ok || had != o.params[name] {
			if !ok {
				shown = "none"
			}
			texts = append(texts, "param."+name+": "+shown+" → "+strconv.Quote(o.params[name]))
		}
	}

	return texts
}
