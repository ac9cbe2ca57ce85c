package cli

import (
	"os/user"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
)

// ownershipFlags are --uid, --gid, --mode and --recursive, as they were typed.
type ownershipFlags struct {
	uid, gid, mode string
	recursive      bool
}

func (o *ownershipFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.uid, "uid", "", "the `USER`, by number or name, to whom the volume's root is given")
	f.StringVar(&o.gid, "gid", "", "the `GROUP`, by number or name; the plugin sees to it if it can")
	f.StringVar(&o.mode, "mode", "", "the `MODE` of the volume's root, as in 0770")
	f.BoolVar(&o.recursive, "recursive", false, "all that is in the volume too, unless its root is as asked")
}

// read looks names up on this host, which is the agent's too.
func (o *ownershipFlags) read() (own api.Ownership, err error) {
	if own.UID, err = number("uid", o.uid, func(name string) (string, error) {
		u, err := user.Lookup(name)
		if err != nil {
			return "", err
		}
		return u.Uid, nil
	}); err != nil {
		return own, err
	}
	if own.GID, err = number("gid", o.gid, func(name string) (string, error) {
		g, err := user.LookupGroup(name)
		if err != nil {
			return "", err
		}
		return g.Gid, nil
	}); err != nil {
		return own, err
	}
	if m, err := strconv.ParseUint(o.mode, 8, 32); o.mode != "" && (err != nil || m > 0o7777) {
		return own, usage("--mode 0770", "--mode needs an octal number from 0 to 7777, not %q", o.mode)
	}
	own.Mode, own.Recursive = o.mode, o.recursive
	if o.recursive && own.UID == nil && own.GID == nil && own.Mode == "" {
		return own, usage("--recursive --gid GROUP", "--recursive needs --uid, --gid or --mode")
	}
	return own, nil
}

// number is an id that was given by number or by name; nil if it was not given.
func number(flag, text string, lookup func(string) (string, error)) (*uint32, error) {
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
		return nil, usage("--"+flag+" 1000", "--%s %q is neither a number below 4294967295 nor a name that this host knows", flag, text)
	}
	return new(uint32(n)), nil
}
