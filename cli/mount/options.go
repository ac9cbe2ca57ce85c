package mount

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/fstab"
	"github.com/volagent/volagent/agent/humantime"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/volmgr/bytesize"
)

// These are the attachment modes of CSI.
const (
	fileSystem  = spec.DefaultAttachmentMode
	blockDevice = "block-device"
)

// Options holds the parsed mount options, and the claim request that results from them.
type Options struct {
	Volume string
	Alloc  string
	req    api.ClaimRequest
	own    command.Ownership

	PerAlloc *uint64
	Timeout  time.Duration
	nonEmpty bool

	// class is the class with which a missing volume is created. It is empty if the volume must
	// exist. size is the size of such a volume in bytes; 0 means that the class decides.
	class string
	size  int64

	// network is set by _netdev. The command then waits for an agent that does not answer yet.
	network bool

	// vfs holds the flags that apply only to this mount, and not to the file system as a whole. It
	// has the same keys as ofMount.
	vfs map[string]string
}

// Request returns the request for a claim with these options. It has no directory and no owner.
func (o *Options) Request() api.ClaimRequest { return o.req }

// valued lists the options that take a value.
var valued = map[string]func(o *Options, value string) error{
	"alloc": func(o *Options, v string) error { o.Alloc = v; return command.CheckAlloc(v) },
	"access_mode": func(o *Options, v string) error {
		o.req.AccessMode = v
		return command.OneOf("access mode", v, spec.AccessModes())
	},
	"attachment_mode": func(o *Options, v string) error {
		o.req.AttachmentMode = v
		return command.OneOf("attachment mode", v, spec.AttachmentModes())
	},
	"per_alloc":  (*Options).setPerAlloc,
	"uid":        func(o *Options, v string) error { o.own.UID = v; return nil },
	"gid":        func(o *Options, v string) error { o.own.GID = v; return nil },
	"mode":       func(o *Options, v string) error { o.own.Mode = v; return nil },
	"mount_flag": func(o *Options, v string) error { o.req.MountFlags = append(o.req.MountFlags, v); return nil },
	"timeout":    (*Options).setTimeout,
	"class":      (*Options).setClass,
	"size":       (*Options).setSize,
}

// plain lists the options that take no value.
var plain = map[string]func(o *Options){
	"ro":          func(o *Options) { o.req.ReadOnly = true },
	"rw":          func(o *Options) { o.req.ReadOnly = false },
	"recursive":   func(o *Options) { o.own.Recursive = true },
	"nonempty":    func(o *Options) { o.nonEmpty = true },
	"noimmutable": func(o *Options) { o.req.AtWritable = true },
	"_netdev":     func(o *Options) { o.network = true },
}

// ignored lists options of mount(8), systemd and fstab(5) that have no effect on the helper.
var ignored = []string{
	"defaults", "auto", "noauto", "nofail", "fail", "user", "nouser", "users", "nousers",
	"owner", "noowner", "group", "nogroup",
}

// ignoredValues lists options with a value that have no effect on the helper.
var ignoredValues = []string{"comment", "helper", "uhelper"}

// ofMount lists the options that apply only to a mount, and not to the file system as a whole. Of
// several options with the same key, the last one takes effect. An empty flag selects the kernel's
// default.
var ofMount = map[string]struct{ key, flag string }{
	"nosuid": {"suid", "nosuid"}, "suid": {"suid", ""},
	"nodev": {"dev", "nodev"}, "dev": {"dev", ""},
	"noexec": {"exec", "noexec"}, "exec": {"exec", ""},
	"noatime": {"atime", "noatime"}, "relatime": {"atime", "relatime"}, "strictatime": {"atime", "strictatime"},
	"atime": {"atime", ""}, "norelatime": {"atime", ""}, "nostrictatime": {"atime", ""},
	"nodiratime": {"diratime", "nodiratime"}, "diratime": {"diratime", ""},
	"nosymfollow": {"symfollow", "nosymfollow"}, "symfollow": {"symfollow", ""},
}

// inOrder lists the keys of ofMount in the order that claim requests use.
var inOrder = []string{"suid", "dev", "exec", "atime", "diratime", "symfollow"}

// ReadOptions parses the values of -o. Each value is a list of options in the format of fstab(5).
// An unknown option is an error, so that a misspelled option is not ignored.
func ReadOptions(texts []string) (*Options, error) {
	o := &Options{Timeout: command.ClaimTimeout, own: command.Ownership{Option: true}, vfs: map[string]string{}}
	for _, text := range texts {
		for _, option := range fstab.SplitOptions(text) {
			if err := o.set(option); err != nil {
				return nil, err
			}
		}
	}

	for _, key := range inOrder {
		if flag := o.vfs[key]; flag != "" {
			o.req.AtFlags = append(o.req.AtFlags, flag)
		}
	}

	if o.class == "" && o.size != 0 {
		return nil, command.Usage("name the class too: class=NAME", "the option %q is for a new volume", "size")
	}

	var err error
	o.req.Ownership, err = o.own.Read()
	return o, err
}

func (o *Options) set(option string) error {
	name, value, given := strings.Cut(option, "=")
	_, isVFS := ofMount[name]
	switch {
	case strings.HasPrefix(name, "x-"), strings.HasPrefix(name, "X-"), slices.Contains(ignoredValues, name):
		return nil
	case valued[name] != nil && value == "":
		return command.Usage(name+"=VALUE", "the option %q needs a value", name)
	case valued[name] != nil:
		return valued[name](o, value)
	case given && (plain[name] != nil || isVFS || slices.Contains(ignored, name)):
		return command.Usage(name, "the option %q takes no value", name)
	case slices.Contains(ignored, name):
		return nil
	case isVFS:
		o.vfs[ofMount[name].key] = ofMount[name].flag
		return nil
	case plain[name] != nil:
		plain[name](o)
		return nil
	case name == "remount":
		return command.Usage("umount it and mount it again, with other options", "a volume that is mounted cannot be remounted")
	}

	return unknownOption(name)
}

// unknownOption returns the error for an unknown option. Its hint suggests similar options.
func unknownOption(name string) error {
	known := slices.Concat(slices.Sorted(maps.Keys(valued)), slices.Sorted(maps.Keys(plain)), slices.Sorted(maps.Keys(ofMount)), ignored)
	hint := fmt.Sprintf("pass an option of the file system to the plugin as mount_flag=%s; all options: volctl mount --help", name)

	meant := strings.ReplaceAll(name, "-", "_")
	if near := spec.Near(meant, known); !slices.Contains(known, meant) && len(near) > 0 {
		meant = near[0]
	}

	switch {
	case valued[meant] != nil:
		hint = "did you mean " + meant + "=?"
	case slices.Contains(known, meant):
		hint = "did you mean " + meant + "?"
	}

	return command.Usage(hint, "unknown mount option %q", name)
}

func (o *Options) setPerAlloc(value string) error {
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil {
		return command.Usage("per_alloc=0", "per_alloc needs the number of an alloc, not %q", value)
	}
	o.PerAlloc = &n
	return nil
}

func (o *Options) setClass(value string) error {
	o.class = value
	return command.CheckClassID(value)
}

func (o *Options) setSize(value string) (err error) {
	if o.size, err = bytesize.Parse(value); err != nil {
		return command.Usage("size=10GiB", "%v", err)
	}
	return nil
}

func (o *Options) setTimeout(value string) error {
	d, err := humantime.ParseDuration(value)
	if err != nil {
		return command.Usage("timeout=80s", "timeout: %v", err)
	}
	if d <= 0 {
		return command.Usage("timeout=80s", "timeout needs a time that is more than 0, not %q", value)
	}
	o.Timeout = d
	return nil
}
