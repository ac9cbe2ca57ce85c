package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/apiclient"
)

type pluginLogsOptions struct {
	id     string
	lines  int
	follow bool
	part   apiclient.Part
}

func newPluginLogs(a *app) *cobra.Command {
	var o pluginLogsOptions
	cmd := &cobra.Command{
		Use: "logs ID", Short: "Print the output of a plugin",
		Long: `Print the output of a plugin unchanged. A unique prefix of the id is enough. If the plugin has
several parts, each line begins with the name of its part.`,
		Args: exactly("ID"), ValidArgsFunction: completeArg(a, pluginIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.id = args[0]
			if err := checkCount(cmd, o.lines); err != nil {
				return err
			}
			if err := checkPart(o.part); err != nil {
				return err
			}

			return a.do(cmd, func(ctx context.Context, client *apiclient.Client, out *output) error {
				return runPluginLogs(ctx, o, client, out)
			})
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVarP(&o.follow, "follow", "f", false, "keep printing new output until Ctrl-C")
	f.IntVarP(&o.lines, "lines", "n", 0, "print only the last `N` lines (default 100)")
	partFlags(cmd, &o.part)

	return cmd
}

func runPluginLogs(ctx context.Context, o pluginLogsOptions, client *apiclient.Client, out *output) error {
	p, err := findPlugin(ctx, client, o.id)
	if err != nil {
		return failed(err, "read the log of plugin %q", o.id)
	}

	logs, err := client.PluginLogs(ctx, p.ID, apiclient.LogOptions{Lines: o.lines, Follow: o.follow, Part: o.part})
	if err == nil {
		_, err = io.Copy(out.stdout, logs)
		_ = logs.Close() // the stream is over
	}

	return failed(streamEnd(ctx, o.follow, err), "read the log of plugin %q", p.ID)
}
