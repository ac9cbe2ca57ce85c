package command

import (
	"os/user"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
)

// Ownership holds the unparsed values of --uid, --gid, --mode and --recursive.
type Ownership struct {
	UID, GID, Mode string
	Recursive      bool

	// Option is set if the values come from the mount options uid=, gid=, mode= and recursive
	// instead of flags.
	Option bool
}

// spell returns the name of a flag or mount option as the user types it.
func (o *Ownership) spell(name string) string {
	if o.Option {
		return name
	}
	return "--" + name
}

// example returns a flag or mount option with a value as the user types it.
func (o *Ownership) example(name, value string) string {
	if o.Option {
		return name + "=" + value
	}
	return "--" + name + " " + value
}

// Add adds the flags of Ownership to a command.
func (o *Ownership) Add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.UID, "uid", "", "`USER`, by number or name, that gets the volume's root")
	f.StringVar(&o.GID, "gid", "", "`GROUP` of the volume's root, by number or name; the plugin applies it if it can")
	f.StringVar(&o.Mode, "mode", "", "`MODE` of the volume's root, as in 0770")
	f.BoolVar(&o.Recursive, "recursive", false, "apply --uid, --gid and --mode to everything in the volume, unless its root has them already")
}

// Read parses the values. It looks up user and group names on this host, because the agent runs on
// the same host.
func (o *Ownership) Read() (own api.Ownership, err error) {
	if own.UID, err = o.number("uid", o.UID, func(name string) (string, error) {
		u, err := user.Lookup(name)
		if err != nil {
			return "", err
		}
		return u.Uid, nil
	}); err != nil {
		return own, err
	}

	if own.GID, err = o.number("gid", o.GID, func(name string) (string, error) {
		g, err := user.LookupGroup(name)
		if err != nil {
			return "", err
		}
		return g.Gid, nil
	}); err != nil {
		return own, err
	}

	if m, err := strconv.ParseUint(o.Mode, 8, 32); o.Mode != "" && (err != nil || m > 0o7777) {
		return own, Usage(o.example("mode", "0770"), "%s needs an octal number from 0 to 7777, not %q", o.spell("mode"), o.Mode)
	}

	own.Mode, own.Recursive = o.Mode, o.Recursive
	if o.Recursive && own.UID == nil && own.GID == nil && own.Mode == "" {
		return own, Usage(o.spell("recursive")+" and "+o.example("gid", "GROUP"), "%s needs %s, %s or %s",
			o.spell("recursive"), o.spell("uid"), o.spell("gid"), o.spell("mode"))
	}

	return own, nil
}

// number returns the id of a user or group. The argument text is an id or a name. If text is empty,
// number returns nil.
func (o *Ownership) number(flag, text string, lookup func(string) (string, error)) (*uint32, error) {
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
		return nil, Usage(o.example(flag, "1000"), "%s %q is neither a number below 4294967295 nor a name that this host knows", o.spell(flag), text)
	}

	return new(uint32(n)), nil
}
