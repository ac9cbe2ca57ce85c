package cli

import (
	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cli/class"
	"github.com/volagent/volagent/cli/cluster"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/failover"
	"github.com/volagent/volagent/cli/mount"
	"github.com/volagent/volagent/cli/node"
	"github.com/volagent/volagent/cli/plugin"
	"github.com/volagent/volagent/cli/state"
	"github.com/volagent/volagent/cli/systemd"
	"github.com/volagent/volagent/cli/volume"
)

// Command returns the tree of commands for the documentation. The commands cannot be run.
func Command() *cobra.Command {
	return newRoot(command.NewApp(command.Env{Getenv: func(string) string { return "" }}), mount.Host{})
}

// newRoot builds the tree of commands.
func newRoot(a *command.App, host mount.Host) *cobra.Command {
	root := command.Group("volctl", "Manage the volumes of this host", `Manage the volumes of this host through volagent.

Long flags work with one dash too. Commands that only read accept a unique prefix of an id.
Commands that change state need the exact id.

`+exitCodesHelp)

	root.Version = api.Version
	root.SetVersionTemplate("volctl {{.Version}}\n")
	root.SetOut(a.Env.Stdout)
	root.SetErr(a.Env.Stderr)
	root.SetIn(a.Env.Stdin)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(command.FlagError)
	root.SetHelpCommand(command.NewHelp())

	flags := root.PersistentFlags()
	flags.SortFlags = false
	a.AddFlags(flags)

	root.AddCommand(
		volume.New(a), volume.NewClaims(a), mount.New(a, host), mount.NewUmount(a, host), plugin.New(a), class.New(a),
		node.New(a), cluster.New(a), systemd.New(a, host), failover.New(a, failover.HostAt(host.Root)), node.NewDoctor(a), state.New(a), node.NewEvents(a),
		newWait(a), newVersion(a), command.NewCompletion(),
	)

	root.AddCommand(aliases(a)...)
	return root
}
