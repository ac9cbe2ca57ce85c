package command

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Normalise prepares argv for the flag parser, which would read "-force" as "-f orce". It resolves
// the command and moves the command's words to the front. Long flags of that command that have one
// dash get a second one. Values of flags, combined shorthands and all arguments after "--" do not
// change.
func Normalise(root *cobra.Command, args []string) []string {
	if len(args) > 0 && strings.HasPrefix(args[0], "__complete") {
		return args // the shell asks about an unfinished line
	}
	root.InitDefaultHelpCmd()
	cmd, words, rest := resolve(root, args)
	return append(words, secondDash(allFlags(cmd), rest)...)
}

// resolve finds the command that args name, and separates its words from the remaining arguments.
// Flags may come before the command's words. To tell their values from those words, resolve knows
// the flags of all commands.
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

// secondDash rewrites the flags in args.
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

// longFlag finds the flag of "name" or "name=value". It returns nil for a name of one letter.
func longFlag(known *pflag.FlagSet, text string) *pflag.Flag {
	name, _, _ := strings.Cut(text, "=")
	if len(name) < 2 {
		return nil
	}
	return known.Lookup(name)
}

// takesNext reports whether the argument after a flag is the flag's value.
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

// allFlags returns a command's own flags and the inherited ones.
func allFlags(cmd *cobra.Command) *pflag.FlagSet {
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	cmd.LocalFlags() // merges the inherited ones into Flags
	return cmd.Flags()
}

// union returns the flags of all commands. It relies on each name meaning the same in every
// command.
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
