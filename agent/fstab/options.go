package fstab

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/volagent/volagent/agent/humantime"
)

// Option is a valid option of a csi entry.
type Option struct {
	Name string
	// Value checks the text after "=". Value is nil if the option takes no value.
	Value func(string) error
}

// Options lists the valid options, including the options of mount(8), systemd and fstab(5). It
// omits options that begin with "x-" or "X-", because other programs define them.
var Options = slices.Concat([]Option{
	{"alloc", some}, {"access_mode", oneOf(accessModes)}, {"attachment_mode", oneOf(attachmentModes)}, {"per_alloc", number},
	{"uid", some}, {"gid", some}, {"mode", octal}, {"mount_flag", some}, {"timeout", duration},
	{"class", some}, {"size", some},
	{"comment", anything}, {"helper", anything}, {"uhelper", anything},
}, plain("ro", "rw", "recursive", "nonempty", "noimmutable",
	"nosuid", "suid", "nodev", "dev", "noexec", "exec", "noatime", "atime", "nodiratime", "diratime",
	"relatime", "norelatime", "strictatime", "nostrictatime", "nosymfollow", "symfollow",
	"defaults", "_netdev", "auto", "noauto", "nofail", "fail",
	"user", "nouser", "users", "nousers", "owner", "noowner", "group", "nogroup"))

var (
	accessModes = []string{
		"single-node-reader-only", "single-node-writer", "single-node-single-writer", "single-node-multi-writer",
		"multi-node-reader-only", "multi-node-single-writer", "multi-node-multi-writer",
	}
	attachmentModes = []string{"file-system", "block-device"}
)

func plain(names ...string) (all []Option) {
	for _, n := range names {
		all = append(all, Option{Name: n})
	}
	return all
}

// CheckOption returns an error if an option of a csi entry is unknown or has an invalid value.
func CheckOption(option string) error {
	name, value, valued := strings.Cut(option, "=")
	if strings.HasPrefix(name, "x-") || strings.HasPrefix(name, "X-") {
		return nil
	}

	i := slices.IndexFunc(Options, func(o Option) bool { return o.Name == name })
	switch {
	case i < 0:
		return fmt.Errorf("there is no option %q", name)
	case Options[i].Value == nil && valued:
		return fmt.Errorf("option %q has no value", name)
	case Options[i].Value == nil:
		return nil
	}

	if err := Options[i].Value(value); err != nil {
		return fmt.Errorf("option %q: %w", name, err)
	}

	return nil
}

func anything(string) error { return nil }

func some(value string) error {
	if value == "" {
		return errors.New("it needs a value")
	}
	return nil
}

func oneOf(words []string) func(string) error {
	return func(value string) error {
		if !slices.Contains(words, value) {
			return fmt.Errorf("%q is not one of %s", value, strings.Join(words, ", "))
		}
		return nil
	}
}

func number(value string) error {
	if _, err := strconv.ParseUint(value, 10, 32); err != nil {
		return fmt.Errorf("%q is not a whole number", value)
	}
	return nil
}

func octal(value string) error {
	if n, err := strconv.ParseUint(value, 8, 32); err != nil || n > 0o7777 {
		return fmt.Errorf("%q is not a mode such as 0770", value)
	}
	return nil
}

func duration(value string) error {
	d, err := humantime.ParseDuration(value)
	if err == nil && d <= 0 {
		err = fmt.Errorf("%q is not a duration above 0", value)
	}
	return err
}
