package volume

import (
	"bytes"
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

type statsOptions struct{ id string }

func newStats(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use: "stats ID", Short: "Ask the plugin how full a volume is",
		Long: `Ask the plugin how full a mounted volume is. For a block device, the plugin knows only the size.
volctl volume status and the metrics show the last answer.`,
		Args: command.Exactly("ID"), ValidArgsFunction: command.CompleteArg(a, command.VolumeIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o := statsOptions{id: args[0]}
			return a.Read(cmd, o.run)
		},
	}
}

func (o statsOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	v, err := command.FindVolume(ctx, client, o.id)
	if err != nil {
		return command.Failed(err, "measure volume %q", o.id)
	}

	s, err := client.VolumeStats(ctx, v.Spec.ID)
	if err != nil {
		return command.Failed(err, "measure volume %q", v.Spec.ID)
	}

	return out.Print(s, []string{v.Spec.ID}, func(w *bytes.Buffer) error {
		var rows [][]string
		if s.BytesTotal > 0 || s.InodesTotal == 0 {
			row := []string{"Bytes", output.Size(s.BytesUsed), output.Size(s.BytesAvailable), output.Size(s.BytesTotal), share(s.BytesUsed, s.BytesTotal)}
			if totalOnly(*s) {
				row = []string{"Bytes", "-", "-", output.Size(s.BytesTotal), "-"}
			}
			rows = append(rows, row)
		}

		if s.InodesTotal > 0 {
			rows = append(rows, []string{
				"Inodes", strconv.FormatInt(s.InodesUsed, 10), strconv.FormatInt(s.InodesAvailable, 10),
				strconv.FormatInt(s.InodesTotal, 10), share(s.InodesUsed, s.InodesTotal),
			})
		}

		return out.Table(w, "", []string{"", "Used", "Available", "Total", "Use"}, rows)
	})
}

// totalOnly reports whether the plugin has returned only a total size, as plugins do for block
// devices.
func totalOnly(s api.Stats) bool {
	return s.BytesTotal > 0 && s.BytesUsed == 0 && s.BytesAvailable == 0
}

func share(part, whole int64) string {
	if whole == 0 {
		return "-"
	}
	return output.Percent(part, whole)
}
