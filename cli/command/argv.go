package command

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Normalise rewrites argv for the flag parser, which would read "-force" as "-f orce". It moves the
// name of the command to the front, and adds a dash to long flags that have only one. It does not
// change values of flags, combined short flags, or arguments after "--".
func Normalise(root *cobra.Command, args []string) []string {
	if len(args) > 0 && strings.HasPrefix(args[0], "__complete") {
		return args // the shell has sent an incomplete command line for completion
	}
	root.InitDefaultHelpCmd()
	cmd, words, rest := resolve(root, args)
	return append(words, secondDash(allFlags(cmd), rest)...)
}

// resolve finds the command in args. It returns the words of the command's name, and the other
// arguments. Flags may precede the name, so resolve uses the flags of all commands to tell the
// values of flags from words of the name.
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

// secondDash adds a second dash to long flags that have only one.
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

// longFlag returns the flag for a text of the form "name" or "name=value". It returns nil if there
// is no such flag, or if the name has only one letter.
func longFlag(known *pflag.FlagSet, text string) *pflag.Flag {
	name, _, _ := strings.Cut(text, "=")
	if len(name) < 2 {
		return nil
	}
	return known.Lookup(name)
}

// takesNext reports whether the flag arg takes the next argument as its value.
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

// allFlags returns all flags of a command, including inherited flags.
func allFlags(cmd *cobra.Command) *pflag.FlagSet {
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	cmd.LocalFlags() // as a side effect, adds inherited flags to Flags
	return cmd.Flags()
}

// union returns a set with the flags of all commands. The set has no conflicts, because each flag
// takes a value either in every command or in none.
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
