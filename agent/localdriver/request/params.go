package request

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/imagefs"
	"github.com/volagent/volagent/agent/localdriver/store"
)

const (
	mebibyte = int64(1) << 20
	gibibyte = int64(1) << 30

	defaultImageSize = 1 * gibibyte
	minRawSize       = 1 * mebibyte
	imageGranularity = 4096 // in bytes; the size of an image is a multiple of imageGranularity
	maxNameBytes     = 128  // CSI's maximum length of a string, in bytes
)

// Params contains the parsed create parameters.
type Params struct {
	Typ    string // empty if the request names no type
	FsType string // empty if the request names no filesystem
}

// ParseParams parses the create parameters of a request.
func ParseParams(m map[string]string) (Params, error) {
	var p Params
	for _, k := range slices.Sorted(maps.Keys(m)) {
		switch v := m[k]; k {
		case store.ParamType:
			if v != store.TypeDirectory && v != store.TypeImage {
				return p, csierr.Invalidf("parameter %q: %q is not one of %s, %s", k, v, store.TypeDirectory, store.TypeImage)
			}
			p.Typ = v
		case store.ParamFSType:
			if _, ok := imagefs.FindFilesystem(v); !ok {
				return p, csierr.Invalidf("parameter %q: %q is not one of %s", k, v, imagefs.FilesystemNames())
			}
			p.FsType = v
		default:
			return p, csierr.Invalidf("unknown parameter %q; the local driver knows %s and %s", k, store.ParamType, store.ParamFSType)
		}
	}

	return p, nil
}

// Cannot reports whether no volume with these parameters can have the given capability.
func (p Params) Cannot(c *csi.VolumeCapability) bool {
	a, err := parseAccess(c)
	return err != nil || a.Block && p.Typ == store.TypeDirectory
}

// Plan returns the volume that a create request describes, without an id and a size. If the request
// names no type, the volume gets the type typ.
func Plan(req *csi.CreateVolumeRequest, typ string) (store.Volume, error) {
	v := store.Volume{Version: store.MetaVersion, Name: req.GetName()}
	if err := CheckName("volume", v.Name); err != nil {
		return v, err
	}

	switch {
	case len(req.GetVolumeCapabilities()) == 0:
		return v, csierr.Invalidf("no volume capabilities are given")
	}

	p, err := ParseParams(req.GetParameters())
	if err != nil {
		return v, err
	}

	change, err := ParseMutable(req.GetMutableParameters())
	if err != nil {
		return v, err
	}

	v.Type, v.Quota = cmp.Or(p.Typ, typ), change.Quota
	fsType, mounted := p.FsType, false

	for _, c := range req.GetVolumeCapabilities() {
		a, err := parseAccess(c)
		if err != nil {
			return v, err
		}

		v.Block = v.Block || a.Block
		mounted = mounted || !a.Block
		if a.fsType != "" && fsType != "" && a.fsType != fsType {
			return v, csierr.Invalidf("two filesystem types are asked for: %q and %q", fsType, a.fsType)
		}

		if a.fsType != "" {
			fsType = a.fsType
		}
	}

	return v, settle(&v, fsType, mounted)
}

// settle sets the filesystem of a volume. fsType is the requested filesystem, or "" if the request
// names none. The argument mounted is true if the volume will be used as a mounted filesystem.
func settle(v *store.Volume, fsType string, mounted bool) error {
	switch {
	case v.Type == store.TypeDirectory && v.Block:
		return csierr.Invalidf("a volume of type %q cannot be a block device; use the parameter type: %s", store.TypeDirectory, store.TypeImage)
	case v.Type == store.TypeDirectory && fsType != "":
		return csierr.Invalidf("a volume of type %q has no filesystem of its own, so fs_type %q cannot be met; use the parameter type: %s",
			store.TypeDirectory, fsType, store.TypeImage)
	case v.Type == store.TypeDirectory:
		return nil
	case !mounted && fsType != "":
		return csierr.Invalidf("fs_type %q is given, but only block access is asked for", fsType)
	case !mounted:
		return nil
	case fsType == "":
		fsType = imagefs.Filesystems[0].Name
	}

	if _, ok := imagefs.FindFilesystem(fsType); !ok {
		return csierr.Invalidf("fs_type %q is not one of %s", fsType, imagefs.FilesystemNames())
	}

	v.FSType = fsType
	return nil
}

// CheckName returns an error if CSI does not allow the name. For the error message, the caller
// passes the kind of object, such as "volume".
func CheckName(what, name string) error {
	switch {
	case name == "":
		return csierr.Invalidf("the %s name is empty", what)
	case len(name) > maxNameBytes:
		return csierr.Invalidf("the %s name has %d bytes, and CSI allows %d", what, len(name), maxNameBytes)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return csierr.Invalidf("the %s name %q holds control characters or is not UTF-8", what, name)
	}
	return nil
}

// SizeFor chooses the size of a volume in bytes within the requested range. A directory gets
// exactly the required size, because its size is only recorded. An image gets a multiple of
// imageGranularity.
func SizeFor(v *store.Volume, r *csi.CapacityRange) (int64, error) {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	if required < 0 || limit < 0 {
		return 0, csierr.Invalidf("the capacity range %d to %d is negative", required, limit)
	}
	if limit > 0 && required > limit {
		return 0, csierr.OutOfRangef("required_bytes %d is more than limit_bytes %d", required, limit)
	}
	if v.Type == store.TypeDirectory {
		return required, nil
	}

	kind, least := "a raw image", minRawSize
	if f, ok := imagefs.FindFilesystem(v.FSType); ok {
		kind, least = "an image with "+f.Name, f.MinSize
	}

	size := defaultImageSize
	switch {
	case required > 0 && required < least, limit > 0 && limit < least:
		return 0, csierr.OutOfRangef("%s needs at least %d bytes (%d MiB)", kind, least, least/mebibyte)
	case required > 0:
		size = (required + imageGranularity - 1) / imageGranularity * imageGranularity
	case limit > 0 && limit < size:
		size = limit / imageGranularity * imageGranularity
	}

	if size < required || limit > 0 && size > limit {
		return 0, csierr.OutOfRangef("no multiple of %d bytes lies between %d and %d", imageGranularity, required, limit)
	}

	return size, nil
}

// Satisfies returns the reason why an existing volume does not fit a create request with the same
// name. It returns nil if the volume fits.
func Satisfies(v *store.Volume, want store.Volume, r *csi.CapacityRange) error {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	switch {
	case v.Type != want.Type:
		return csierr.Existsf("volume %q exists with type %q, not %q", v.Name, v.Type, want.Type)
	case v.FSType != want.FSType:
		return csierr.Existsf("volume %q exists with fs_type %q, not %q", v.Name, v.FSType, want.FSType)
	case v.Block != want.Block:
		return csierr.Existsf("volume %q exists with block access %t, not %t", v.Name, v.Block, want.Block)
	case v.Source != want.Source:
		return csierr.Existsf("volume %q exists with the source %q, not %q", v.Name, v.Source, want.Source)
	case v.Capacity < required || limit > 0 && v.Capacity > limit:
		return csierr.Existsf("volume %q exists with %d bytes, not within %d to %d", v.Name, v.Capacity, required, limit)
	}

	return nil
}
