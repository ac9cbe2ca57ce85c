package volume

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/bytesize"
	"github.com/volagent/volagent/volmgr/suggest"
)

type expandOptions struct {
	volume  string
	bytes   int64
	timeout time.Duration
	noWait  bool

	withdraw bool
}

func newExpand(a *command.App) *cobra.Command {
	var o expandOptions
	cmd := &cobra.Command{
		Use: "expand ID SIZE", Short: "Make a volume larger",
		Long: `Make a volume larger, to at least SIZE. A mounted volume grows while it is in use, if its plugin
supports that. Otherwise the volume must be free. The contents of a volume that is not mounted
grow at the next mount. A volume that has the size already stays as it is, with exit code 0. The
command makes no volume smaller.

The agent continues until the expansion is done or the plugin refuses it, even after --timeout or
Ctrl-C, or with --no-wait. To wait again, run the same command again. To give up an expansion that
does not succeed, use --withdraw.`,
		Example: "  volctl volume expand data 20GiB\n  volctl volume expand data --withdraw",
		Args:    command.Between(1, "ID", "SIZE"), ValidArgsFunction: command.CompleteArg(a, command.VolumeIDs),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			o.volume = args[0]
			if err := command.CheckVolumeID(o.volume); err != nil {
				return command.Failed(err, "expand volume %q", o.volume)
			}
			if err := o.size(args[1:]); err != nil {
				return command.Failed(err, "expand volume %q", o.volume)
			}
			if err := command.CheckTimeout(o.timeout); err != nil {
				return err
			}

			return a.Do(cmd, o.run)
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	command.DurationVar(f, &o.timeout, "timeout", command.ClaimTimeout, "how long to wait until the expansion is done")
	f.BoolVar(&o.noWait, "no-wait", false, "do not wait; the agent continues")
	f.BoolVar(&o.withdraw, "withdraw", false, "give up an expansion that is not done yet; give no SIZE")

	return cmd
}

// size parses the argument SIZE, which is required unless --withdraw is set.
func (o *expandOptions) size(args []string) (err error) {
	const help = "volctl volume expand --help"
	switch {
	case o.withdraw && len(args) > 0:
		return command.Usage(help, "--withdraw takes no SIZE")
	case o.withdraw:
		return nil
	case len(args) == 0:
		return command.Usage(help, "volume expand needs SIZE")
	}

	if o.bytes, err = bytesize.Parse(args[0]); err != nil {
		return command.Usage(help, "%v", err)
	}

	return nil
}

func (o expandOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	end := out.During(ctx, fmt.Sprintf("expanding volume %q", o.volume), command.VolumeProgress(client, o.volume, ""))
	r, err := o.expand(ctx, client)
	end()

	if ctx.Err() != nil && err != nil {
		return command.Failed(command.Interrupted("it was interrupted; the expansion continues", suggest.Command("volctl volume status %s", o.volume)), "expand volume %q", o.volume)
	}
	if err != nil {
		return command.Failed(command.Explain(ctx, client, err, o.volume), "expand volume %q", o.volume)
	}

	return out.Print(r, []string{o.volume}, expandedText(o, r))
}

// expand sends the request to the agent. A broken connection probably means that the agent
// restarts, so expand repeats the request. The agent has stored the expansion and continues it, so
// nothing is lost except the request that waited for it.
func (o *expandOptions) expand(ctx context.Context, client *apiclient.Client) (*api.VolumeResult, error) {
	if o.withdraw {
		return client.WithdrawExpansion(ctx, o.volume)
	}
	if o.noWait {
		return client.ExpandVolume(ctx, o.volume, o.bytes, 0)
	}

	deadline, again := time.Now().Add(o.timeout), false
	ctx, cancel := context.WithDeadline(ctx, deadline.Add(command.AnswerGrace))
	defer cancel()

	for {
		r, err := client.ExpandVolume(ctx, o.volume, o.bytes, max(time.Until(deadline), time.Millisecond))
		again = again || command.Dropped(err)
		if !again || command.CodeOf(err) != api.CodeUnreachable || time.Now().After(deadline) {
			return r, err
		}
		if command.Sleep(ctx, command.RetryEvery) != nil {
			return nil, ctx.Err()
		}
	}
}

// expandedText returns a screen with the result of an expansion. If a step remains to be done, the
// screen says so.
func expandedText(o expandOptions, r *api.VolumeResult) func(*bytes.Buffer) error {
	has := output.ExactSize(max(r.Volume.Capacity, o.bytes))
	text := fmt.Sprintf("%s volume %q to %s", r.Outcome, o.volume, has)
	x := r.Volume.Expansion
	switch {
	case r.Outcome == api.OutcomeUnchanged && o.withdraw:
		text = fmt.Sprintf("volume %q is unchanged: it is not being expanded", o.volume)
	case r.Outcome == api.OutcomeUnchanged:
		text = fmt.Sprintf("volume %q is unchanged: it has %s", o.volume, has)
	case r.Outcome == api.OutcomeWithdrawn:
		text = fmt.Sprintf("withdrew the expansion of volume %q; if a call for it had an effect, the storage may have grown", o.volume)
	case x == nil:
	case x.Want > 0:
		text += "; to wait for it, run the same command again"
	case x.Node > 0:
		text += "; its file system is expanded when it is mounted for writing"
	}

	return func(w *bytes.Buffer) error {
		w.WriteString(output.Printable(text) + "\n")
		return nil
	}
}
