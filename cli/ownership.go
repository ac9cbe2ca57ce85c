package cli

import (
	"os/user"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
)

// ownershipFlags are the values of --uid, --gid, --mode and --recursive, as typed.
type ownershipFlags struct {
	uid, gid, mode string
	recursive      bool

	// option tells that they come from mount options: uid=, gid=, mode=, recursive.
	option bool
}

// spell returns a flag's name as the user types it.
func (o *ownershipFlags) spell(name string) string {
	if o.option {
		return name
	}
	return "--" + name
}

// example returns a flag with a value, as the user types it.
func (o *ownershipFlags) example(name, value string) string {
	if o.option {
		return name + "=" + value
	}
	return "--" + name + " " + value
}

func (o *ownershipFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.uid, "uid", "", "`USER`, by number or name, that gets the volume's root")
	f.StringVar(&o.gid, "gid", "", "`GROUP` of the volume's root, by number or name; the plugin applies it if it can")
	f.StringVar(&o.mode, "mode", "", "`MODE` of the volume's root, as in 0770")
	f.BoolVar(&o.recursive, "recursive", false, "apply --uid, --gid and --mode to everything in the volume, unless its root has them already")
}

// read parses the flags. It looks names up on this host, which is also the agent's host.
func (o *ownershipFlags) read() (own api.Ownership, err error) {
	if own.UID, err = o.number("uid", o.uid, func(name string) (string, error) {
		u, err := user.Lookup(name)
		if err != nil {
			return "", err
		}
		return u.Uid, nil
	}); err != nil {
		return own, err
	}

	if own.GID, err = o.number("gid", o.gid, func(name string) (string, error) {
		g, err := user.LookupGroup(name)
		if err != nil {
			return "", err
		}
		return g.Gid, nil
	}); err != nil {
		return own, err
	}

	if m, err := strconv.ParseUint(o.mode, 8, 32); o.mode != "" && (err != nil || m > 0o7777) {
		return own, usage(o.example("mode", "0770"), "%s needs an octal number from 0 to 7777, not %q", o.spell("mode"), o.mode)
	}

	own.Mode, own.Recursive = o.mode, o.recursive
	if o.recursive && own.UID == nil && own.GID == nil && own.Mode == "" {
		return own, usage(o.spell("recursive")+" and "+o.example("gid", "GROUP"), "%s needs %s, %s or %s",
			o.spell("recursive"), o.spell("uid"), o.spell("gid"), o.spell("mode"))
	}

	return own, nil
}

// number returns an id that was given as a number or a name. It returns nil if text is empty.
func (o *ownershipFlags) number(flag, text string, lookup func(string) (string, error)) (*uint32, error) {
	if text == "" {
		return nil, nil
	}

	id := text
	n, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		if id, err = lookup(text); err == nil {
			n, err = strconv.ParseUint(id, 10, 32)
		}
	}

	if err != nil || n == 1<<32-1 {
		return nil, usage(o.example(flag, "1000"), "%s %q is neither a number below 4294967295 nor a name that this host knows", o.spell(flag), text)
	}

	return new(uint32(n)), nil
}
