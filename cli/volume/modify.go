package volume

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

type modifyOptions struct {
	volume  string
	mutable map[string]string
	again   string
}

func newModify(a *command.App) *cobra.Command {
	var o modifyOptions
	return &cobra.Command{
		Use: "modify ID KEY=VALUE...", Short: "Change the mutable parameters of a volume",
		Long: `Change the mutable parameters of a volume through its plugin, even while the volume is in use.
Parameters that you do not name stay as they are. If the volume has the values already, it stays
as it is, with exit code 0. If the result of an earlier modify is unknown, the same command
continues it.`,
		Example: "  volctl volume modify data iops=4000 throughput=250",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return command.Exactly("ID", "KEY=VALUE")(cmd, args)
			}
			return nil
		},
		ValidArgsFunction: command.CompleteArg(a, command.VolumeIDs),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			o.volume = args[0]
			if err := command.CheckVolumeID(o.volume); err != nil {
				return err
			}
			if o.mutable, err = command.KeyValues("", args[1:]); err != nil {
				return command.Usage("volctl volume modify --help", "each argument after the id must be KEY=VALUE, with a different key")
			}
			o.again = suggest.Command("volctl volume modify %s", args)
			return a.Do(cmd, o.run)
		},
	}
}

func (o modifyOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	r, err := client.ModifyVolume(ctx, o.volume, o.mutable)
	if ctx.Err() != nil && err != nil {
		return command.Failed(command.Interrupted("it was interrupted; it is unknown whether the volume was modified", o.again), "modify volume %q", o.volume)
	}
	if err != nil {
		return command.Failed(command.Explain(ctx, client, err, o.volume), "modify volume %q", o.volume)
	}
	return out.Print(r, []string{o.volume}, func(w *bytes.Buffer) error {
		line := "volume " + output.QuotedList([]string{o.volume}) + " is unchanged"
		if len(r.Changes) > 0 {
			line = r.Outcome + " volume " + output.QuotedList([]string{o.volume}) + ": " + strings.Join(r.Changes, "; ")
		}
		_, err := fmt.Fprintln(w, output.Printable(line))
		return err
	})
}
