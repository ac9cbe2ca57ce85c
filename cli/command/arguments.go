package command

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/volagent/volagent/agent/humantime"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

// Group returns a command that only has subcommands.
func Group(use, short, long string, children ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, args)
		},
	}

	cmd.AddCommand(children...)
	return cmd
}

// unknownCommand returns an error for an unknown command. Its hint suggests similar commands from
// all groups.
func unknownCommand(cmd *cobra.Command, args []string) error {
	return Usage(commandHint(cmd, args[0]), "there is no command %q", cmd.CommandPath()+" "+args[0])
}

// verbs are the commands that users of other tools look for, with the names that the same commands have here.
var verbs = map[string][]string{
	"show": {"status"}, "describe": {"status"}, "get": {"status", "list"}, "info": {"status"},
	"resize": {"expand"}, "grow": {"expand"}, "extend": {"expand"},
	"top": {"stats"}, "df": {"stats"}, "usage": {"stats"}, "du": {"stats"},
	"save": {"backup"}, "backup": {"snapshot"}, "add": {"create", "register"}, "new": {"create", "init"}, "import": {"register"},
	"set": {"modify"}, "update": {"modify"}, "edit": {"modify"},
	"use": {"claim"}, "connect": {"claim"}, "release": {"detach"}, "disconnect": {"detach"}, "unpublish": {"detach"},
	"unmount": {"umount", "detach"}, "reload": {"restart"}, "cordon": {"drain"}, "uncordon": {"undrain"},
}

// commandHint suggests commands for a word that names none. The commands of the group come first.
func commandHint(group *cobra.Command, word string) string {
	if !group.HasSubCommands() {
		return group.CommandPath() + " --help"
	}
	var same, here, near, asVerb []string
	meant, foreign := verbs[word]
	walk(group.Root(), func(c *cobra.Command) {
		line := c.CommandPath()
		named := c.Name() == word || slices.Contains(c.Aliases, word)
		switch {
		case c.Hidden || !c.HasParent():
		case foreign && slices.Contains(meant, c.Name()) && c.Parent() == group:
			here = append(here, line)
		case named || foreign && slices.Contains(meant, c.Name()):
			same = append(same, line)
		case foreign:
		case len(spec.Near(word, []string{c.Name()})) == 0:
			// The user may have meant a verb, as in "volctl claim data".
			if c.Name() == group.Name() && c != group {
				asVerb = append(asVerb, suggest.Command(line+" %s", word))
			}
		case c.Parent() == group:
			here = append(here, line)
		default:
			near = append(near, line)
		}
	})

	switch {
	case foreign && len(here) > 0 && group.HasParent():
		same = nil // the group has it
	case len(same)+len(here) > 0:
		near = nil
	}

	found := slices.Concat(here, same, near, asVerb)
	if len(found) == 0 {
		return group.CommandPath() + " --help"
	}

	return "did you mean " + strings.Join(found[:min(len(found), 4)], ", or ") + "?"
}

// NewHelp returns the command that shows the help of another one. It fails if there is no such command.
func NewHelp() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Show the help of a command", Args: cobra.ArbitraryArgs,
		Long: "Show the help of a command, for example \"volctl help volume claim\".",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			about, rest := find(cmd.Root(), args)
			if len(rest) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			for _, c := range about.Commands() {
				if c.IsAvailableCommand() {
					names = append(names, c.Name()+"\t"+c.Short)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest := find(cmd.Root(), args)
			if len(rest) > 0 {
				return unknownCommand(about, rest)
			}
			about.InitDefaultHelpFlag() // the help lists it
			return about.Help()
		},
	}
}

// find returns the command that the first words name, and the other words.
func find(root *cobra.Command, words []string) (cmd *cobra.Command, rest []string) {
	cmd = root
	for i, word := range words {
		child := childNamed(cmd, word)
		if child == nil || child.Hidden {
			return cmd, words[i:]
		}
		cmd = child
	}
	return cmd, nil
}

func walk(cmd *cobra.Command, each func(*cobra.Command)) {
	each(cmd)
	for _, c := range cmd.Commands() {
		walk(c, each)
	}
}

// FlagError returns a usage error for an invalid flag. Its hint suggests the most similar flag.
func FlagError(cmd *cobra.Command, err error) error {
	hint := cmd.CommandPath() + " --help"
	if name, ok := strings.CutPrefix(err.Error(), "unknown flag: --"); ok {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := spec.Near(name, names); len(near) > 0 {
			hint = "did you mean --" + near[0] + "?"
		}
	}

	return Usage(hint, "%v", err)
}

// Exactly requires one argument for each name. The error lists the missing arguments.
func Exactly(names ...string) cobra.PositionalArgs { return Between(len(names), names...) }

// Between accepts at most one argument for each name. Only the first arguments are required, and
// least is their number.
func Between(least int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		hint, name := cmd.CommandPath()+" --help", strings.TrimPrefix(cmd.CommandPath(), "volctl ")
		if len(args) < least {
			return Usage(hint, "%s needs %s", name, strings.Join(names[len(args):least], " and "))
		}
		if len(args) > len(names) {
			return Usage(hint, "%s does not take the argument %q", name, args[len(names)])
		}
		return nil
	}
}

// OneOf returns a usage error if the value of a flag is not one of the choices.
func OneOf(flag, value string, choices []string) error {
	if slices.Contains(choices, value) {
		return nil
	}
	hint := ""
	if near := spec.Near(value, choices); len(near) > 0 {
		hint = "did you mean " + near[0] + "?"
	}
	return Usage(hint, "unknown %s %q: it is one of %s", strings.ReplaceAll(flag, "-", " "), value, strings.Join(choices, ", "))
}

// Inspect turns a status command into an inspect command. The new command requires an id and always
// prints JSON.
func Inspect(status *cobra.Command, a *App, short string) *cobra.Command {
	run := status.RunE
	status.Use, status.Short, status.Long, status.Args = "inspect ID", short, "", Exactly("ID")
	status.RunE = func(cmd *cobra.Command, args []string) error {
		if a.format == output.FormatTable && !a.quiet {
			a.json = true
		}
		return run(cmd, args)
	}

	return status
}

// KeyValues parses the values of a repeatable KEY=VALUE flag. It refuses a repeated key.
func KeyValues(flag string, values []string) (map[string]string, error) {
	var all map[string]string
	for _, v := range values {
		key, value, ok := strings.Cut(v, "=")
		if _, twice := all[key]; !ok || key == "" || twice {
			return nil, Usage("", "--%s needs KEY=VALUE, and each key once", flag)
		}
		if all == nil {
			all = map[string]string{}
		}
		all[key] = value
	}

	return all, nil
}

// CheckCount returns a usage error if the value of --lines is not positive.
func CheckCount(cmd *cobra.Command, n int) error {
	if cmd.Flags().Changed("lines") && n <= 0 {
		return Usage("", "--lines must be more than 0")
	}
	return nil
}

// DurationVar adds a flag with a duration in the forms of [humantime.ParseDuration].
func DurationVar(f *pflag.FlagSet, to *time.Duration, name string, value time.Duration, usage string) {
	*to = value
	f.Var(humantime.Flag{To: to}, name, usage)
}

// NomadFlags adds hidden flags that commands of Nomad have and that change nothing here, so that such a
// command line works. The flags take one or two dashes, as all flags do.
func NomadFlags(f *pflag.FlagSet, names ...string) {
	for _, name := range names {
		switch name {
		case "namespace":
			f.String(name, "", "ignored: volumes have no namespace")
		case "type":
			f.Var(csiType{}, name, "ignored: all volumes and plugins are CSI")
		default:
			f.Bool(name, false, "ignored: a flag of Nomad")
		}
		f.Lookup(name).Hidden = true
	}
}

// csiType is the value of Nomad's flag --type.
type csiType struct{}

// Set returns an error for all types but csi.
func (csiType) Set(text string) error {
	if text != "csi" {
		return errors.New("only CSI volumes exist here; for a host volume of Nomad, create a volume of the bundled plugin local, or use a bind mount")
	}
	return nil
}

func (csiType) String() string { return "csi" }

// Type returns the type that help pages show.
func (csiType) Type() string { return "string" }

// CheckTimeout returns a usage error if the value of --timeout is not positive.
func CheckTimeout(d time.Duration) error {
	if d <= 0 {
		return Usage("", "--timeout must be more than 0")
	}
	return nil
}
