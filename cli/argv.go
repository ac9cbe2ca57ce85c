package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// normalise prepares argv for the flag parser, which reads "-force" as "-f
// orce" where it can. It resolves the command, brings its words to the front,
// and gives one-dash long flags of that command their second dash. Values of
// flags, combined shorthands and what follows "--" stay as they are.
func normalise(root *cobra.Command, args []string) []string {
	if len(args) > 0 && strings.HasPrefix(args[0], "__complete") {
		return args // the shell asks about a line that is not finished
	}
	root.InitDefaultHelpCmd()
	cmd, words, rest := resolve(root, args)
	return append(words, secondDash(allFlags(cmd), rest)...)
}

// resolve finds the command that args name, and tells its words from the rest.
// Flags of the command may stand before its words, so the flags of all commands
// are used to see which argument is a flag's value.
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

// longFlag finds the flag of "name" or "name=value", unless the name is only a
// letter.
func longFlag(known *pflag.FlagSet, text string) *pflag.Flag {
	name, _, _ := strings.Cut(text, "=")
	if len(name) < 2 {
		return nil
	}
	return known.Lookup(name)
}

// takesNext reports whether the argument after a flag is its value.
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

// allFlags are a command's own flags and those it inherits.
func allFlags(cmd *cobra.Command) *pflag.FlagSet {
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	cmd.LocalFlags() // merges the inherited ones into Flags
	return cmd.Flags()
}

// union are the flags of all commands. A name means the same everywhere.
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
