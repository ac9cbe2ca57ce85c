package plugin

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

type logsOptions struct {
	id     string
	lines  int
	follow bool
	part   apiclient.Part
}

func newLogs(a *command.App) *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{
		Use: "logs ID", Short: "Print the output of a plugin",
		Long: `Print the output of a plugin unchanged. A unique prefix of the id is enough. If the plugin has
several parts, each line begins with the name of its part.`,
		Args: command.Exactly("ID"), ValidArgsFunction: command.CompleteArg(a, command.PluginIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.id = args[0]
			if err := command.CheckCount(cmd, o.lines); err != nil {
				return err
			}
			if err := checkPart(o.part); err != nil {
				return err
			}

			return a.Do(cmd, o.run)
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVarP(&o.follow, "follow", "f", false, "keep printing new output until Ctrl-C")
	f.IntVarP(&o.lines, "lines", "n", 0, "print only the last `N` lines (default 100)")
	partFlags(cmd, &o.part)

	return cmd
}

func (o logsOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	p, err := command.FindPlugin(ctx, client, o.id)
	if err != nil {
		return command.Failed(err, "read the log of plugin %q", o.id)
	}

	logs, err := client.PluginLogs(ctx, p.ID, apiclient.LogOptions{Lines: o.lines, Follow: o.follow, Part: o.part})
	if err == nil {
		_, err = io.Copy(out.Stdout, logs)
		_ = logs.Close() // an error of Close does not matter at the end of the stream
	}

	return command.Failed(command.StreamEnd(ctx, o.follow, err), "read the log of plugin %q", p.ID)
}
