package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/volmgr/suggest"
)

// Command returns the tree of commands for documentation. Do not run it.
func Command() *cobra.Command {
	return newRoot(newApp(Env{Getenv: func(string) string { return "" }}))
}

// newRoot builds the tree of commands.
func newRoot(a *app) *cobra.Command {
	root := group("volctl", "Manage the volumes of this host", `Manage the volumes of this host through volagent.

Long flags work with one dash too. Commands that only read accept a unique prefix of an id.
Commands that change state need the exact id.

`+exitCodesHelp)

	root.Version = api.Version
	root.SetVersionTemplate("volctl {{.Version}}\n")
	root.SetOut(a.env.Stdout)
	root.SetErr(a.env.Stderr)
	root.SetIn(a.env.Stdin)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(flagError)

	flags := root.PersistentFlags()
	flags.SortFlags = false
	flags.StringVar(&a.socket, "socket", a.socket, "`PATH` of the agent's socket; also VOLCTL_SOCKET")
	flags.StringVarP(&a.format, "output", "o", a.format, "`FORMAT`: table, wide, json, yaml or go-template=TEMPLATE")
	flags.BoolVar(&a.json, "json", false, "short for -o json")
	flags.BoolVarP(&a.quiet, "quiet", "q", false, "print only ids")
	flags.BoolVar(&a.noColor, "no-color", false, "do not print colours; also NO_COLOR")

	root.AddCommand(
		newVolume(a), newClaim(a), newMount(a), newUmount(a), newPlugin(a), newNode(a), newSystemd(a),
		newDoctor(a), newState(a), newEvents(a), newWait(a), newVersion(a), newCompletion(),
	)

	root.AddCommand(aliases(a)...)
	return root
}

// group returns a command that only holds other commands.
func group(use, short, long string, children ...*cobra.Command) *cobra.Command {
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

// unknownCommand returns an error that names similar commands, from anywhere in the tree.
func unknownCommand(cmd *cobra.Command, args []string) error {
	return usage(commandHint(cmd, args[0]), "there is no command %q", cmd.CommandPath()+" "+args[0])
}

func commandHint(group *cobra.Command, word string) string {
	var same, here, near, verbs []string
	walk(group.Root(), func(c *cobra.Command) {
		line := c.CommandPath()
		switch {
		case c.Hidden || !c.HasParent():
		case c.Name() == word || slices.Contains(c.Aliases, word):
			same = append(same, line)
		case len(spec.Near(word, []string{c.Name()})) == 0:
			if c.Name() == group.Name() && c != group { // for example "volctl claim data"
				verbs = append(verbs, suggest.Command(line+" %s", word))
			}
		case c.Parent() == group:
			here = append(here, line)
		default:
			near = append(near, line)
		}
	})

	if len(same)+len(here) > 0 {
		near = nil
	}

	found := slices.Concat(same, here, near, verbs)
	if len(found) == 0 {
		return group.CommandPath() + " --help"
	}

	return "did you mean " + strings.Join(found[:min(len(found), 4)], ", or ") + "?"
}

func walk(cmd *cobra.Command, each func(*cobra.Command)) {
	each(cmd)
	for _, c := range cmd.Commands() {
		walk(c, each)
	}
}

// flagError names the known flag that is most like the unknown one.
func flagError(cmd *cobra.Command, err error) error {
	hint := cmd.CommandPath() + " --help"
	if name, ok := strings.CutPrefix(err.Error(), "unknown flag: --"); ok {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := spec.Near(name, names); len(near) > 0 {
			hint = "did you mean --" + near[0] + "?"
		}
	}

	return usage(hint, "%v", err)
}

// exactly accepts a fixed number of arguments. Its error names the missing ones.
func exactly(names ...string) cobra.PositionalArgs { return between(len(names), names...) }

// between is like exactly, but only the first least arguments are required.
func between(least int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		hint, name := cmd.CommandPath()+" --help", strings.TrimPrefix(cmd.CommandPath(), "volctl ")
		if len(args) < least {
			return usage(hint, "%s needs %s", name, strings.Join(names[len(args):least], " and "))
		}
		if len(args) > len(names) {
			return usage(hint, "%s does not take the argument %q", name, args[len(names)])
		}
		return nil
	}
}

// oneOf refuses a flag's value that is not among the choices.
func oneOf(flag, value string, choices []string) error {
	if slices.Contains(choices, value) {
		return nil
	}
	hint := ""
	if near := spec.Near(value, choices); len(near) > 0 {
		hint = "did you mean " + near[0] + "?"
	}
	return usage(hint, "unknown %s %q: it is one of %s", strings.ReplaceAll(flag, "-", " "), value, strings.Join(choices, ", "))
}

// pointer returns a hidden command for a name that other tools use. It only fails, with a hint at
// the right command.
func pointer(name string, instead func(id string) string) *cobra.Command {
	return &cobra.Command{
		Use: name, Hidden: true, DisableFlagParsing: true, Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			id := "ID"
			for _, arg := range args {
				if !strings.HasPrefix(arg, "-") {
					id = arg
					break
				}
			}
			return usage(instead(id), "there is no command %q", cmd.CommandPath())
		},
	}
}

// pointers are the wrong names that people try most often.
func pointers() []*cobra.Command {
	remove := func(id string) string {
		return fmt.Sprintf("%s forgets the volume and keeps its data; %s destroys the data", suggest.Command("volctl volume deregister %s", id), suggest.Command("volctl volume delete %s", id))
	}
	return []*cobra.Command{
		pointer("rm", remove),
		pointer("remove", remove),
		pointer("attach", func(id string) string { return suggest.Command("volctl volume claim %s", id) }),
	}
}
