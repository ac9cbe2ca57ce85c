package cli

import (
	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
)

// Command returns the tree of commands for documentation. Do not run it.
func Command() *cobra.Command {
	return newRoot(newApp(Environment{Getenv: func(string) string { return "" }}), Host{})
}

// newRoot builds the tree of commands.
func newRoot(a *app, host Host) *cobra.Command {
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
	a.flags(flags)

	root.AddCommand(
		newVolume(a), newClaim(a), newMount(a, host), newUmount(a, host), newPlugin(a), newNode(a), newSystemd(a, host),
		newDoctor(a), newState(a), newEvents(a), newWait(a), newVersion(a), newCompletion(),
	)

	root.AddCommand(aliases(a)...)
	return root
}
