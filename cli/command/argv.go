package command

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Normalise rewrites argv for the flag parser, which would read "-force" as "-f orce". It moves the
// name of the command to the front, and gives long flags with one dash a second dash. It does not
// change values of flags, combined short flags, or the arguments after "--".
func Normalise(root *cobra.Command, args []string) []string {
	if len(args) > 0 && strings.HasPrefix(args[0], "__complete") {
		return args // this call comes from the shell, to complete an unfinished line
	}
	root.InitDefaultHelpCmd()
	cmd, words, rest := resolve(root, args)
	return append(words, secondDash(allFlags(cmd), rest)...)
}

// resolve finds the command that args name, and separates the words of its name from the remaining
// arguments. Flags may come before the name. To tell their values from the name, resolve knows the
// flags of all commands.
func resolve(root *cobra.Command, args []string) (cmd *cobra.Command, words, rest []string) {
	known := union(root)
	cmd = root
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			return cmd, words, append(rest, args[i:]...)
		}
		if isFlag(arg) {
			rest = append(rest, arg)
			if takesNext(known, arg) && i+1 < len(args) {
				i++
				rest = append(rest, args[i])
			}
			continue
		}

		child := childNamed(cmd, arg)
		if child == nil {
			return cmd, words, append(rest, args[i:]...)
		}

		cmd, words = child, append(words, arg)
	}

	return cmd, words, rest
}

func childNamed(cmd *cobra.Command, name string) *cobra.Command {
	for _, c := range cmd.Commands() {
		if c.Name() == name || slices.Contains(c.Aliases, name) {
			return c
		}
	}
	return nil
}

func isFlag(arg string) bool { return len(arg) > 1 && arg[0] == '-' }

// secondDash adds the second dash to long flags in args.
func secondDash(known *pflag.FlagSet, args []string) []string {
	var out []string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			return append(out, args[i:]...)
		}

		takes := isFlag(arg) && takesNext(known, arg)
		if isFlag(arg) && arg[1] != '-' && longFlag(known, arg[1:]) != nil {
			arg = "-" + arg
		}

		out = append(out, arg)
		if takes && i+1 < len(args) {
			i++
			out = append(out, args[i])
		}
	}

	return out
}

// longFlag returns the flag for the text "name" or "name=value", or nil if there is none. It
// returns nil for a name of one letter.
func longFlag(known *pflag.FlagSet, text string) *pflag.Flag {
	name, _, _ := strings.Cut(text, "=")
	if len(name) < 2 {
		return nil
	}
	return known.Lookup(name)
}

// takesNext reports whether the argument after the flag arg is that flag's value.
func takesNext(known *pflag.FlagSet, arg string) bool {
	text, long := strings.CutPrefix(arg, "--")
	if !long {
		text = arg[1:]
	}

	if f := longFlag(known, text); f != nil || long {
		return f != nil && f.NoOptDefVal == "" && !strings.Contains(text, "=")
	}

	for i := range len(text) {
		f := known.ShorthandLookup(text[i : i+1])
		switch {
		case f == nil:
			return false
		case f.NoOptDefVal == "":
			return i == len(text)-1
		}
	}

	return false
}

// allFlags returns the flags of a command, including those that it inherits from its parents.
func allFlags(cmd *cobra.Command) *pflag.FlagSet {
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	cmd.LocalFlags() // adds the inherited flags to Flags as a side effect
	return cmd.Flags()
}

// union returns the flags of all commands in one set. The set has no conflicts, because a flag name
// means the same in every command.
func union(root *cobra.Command) *pflag.FlagSet {
	known := pflag.NewFlagSet("", pflag.ContinueOnError)
	var add func(*cobra.Command)
	add = func(cmd *cobra.Command) {
		allFlags(cmd).VisitAll(func(f *pflag.Flag) {
			if known.Lookup(f.Name) != nil {
				return
			}
			copied := *f
			if copied.Shorthand != "" && known.ShorthandLookup(copied.Shorthand) != nil {
				copied.Shorthand = ""
			}
			known.AddFlag(&copied)
		})

		for _, c := range cmd.Commands() {
			add(c)
		}
	}

	add(root)
	return known
}
