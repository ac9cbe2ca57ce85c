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
	"github.com/volagent/volagent/volmgr/suggest"
)

type moveOptions struct {
	volume  string
	host    string
	timeout time.Duration
}

func newMove(a *command.App) *cobra.Command {
	var o moveOptions
	cmd := &cobra.Command{
		Use: "move ID HOST", Short: "Move a shared volume to another host of the cluster",
		Long: `Move a shared volume from the host that holds it to another host. Run the command on any host of the
cluster. HOST must first accept the volume. Its agent refuses if HOST is draining, or if its plugin is
missing or not ready. It also refuses if the plugin cannot reach the volume from HOST, or can have no
more volumes there.

The volume is then reserved for HOST, and the holder accepts no new claims on it. The holder detaches
claims as volctl node drain does, and kills nothing: a claim with a live owner stays until you stop
the owner. A claim without an owner ends when no claim has a live owner. If the holder still uses the
volume after --timeout, it keeps the volume, and the command exits 5 and names the claims.

A claim that waits for the volume on HOST gets it before a claim on any other host. Without such a
claim, the volume stays reserved for one minute.`,
		Example: `  volctl volume move data web2`,
		Args:    command.Exactly("ID", "HOST"), ValidArgsFunction: command.CompleteArg(a, command.VolumeIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.volume, o.host = args[0], args[1]
			if err := command.CheckVolumeID(o.volume); err != nil {
				return command.Failed(err, "move volume %q", o.volume)
			}
			if err := command.CheckTimeout(o.timeout); err != nil {
				return err
			}
			return a.Do(cmd, o.run)
		},
	}

	command.DurationVar(cmd.Flags(), &o.timeout, "timeout", command.ClaimTimeout, "how long the holder has to give the volume up; it keeps the volume after that")
	return cmd
}

func (o moveOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	call, cancel := context.WithTimeout(ctx, o.timeout+2*command.AnswerGrace)
	defer cancel()

	end := out.During(ctx, fmt.Sprintf("moving volume %q to host %q", o.volume, o.host), moveProgress(client, o.volume))
	m, err := client.MoveVolume(call, o.volume, o.host, o.timeout)
	end()
	if err != nil && ctx.Err() != nil {
		err = command.Interrupted("it was interrupted; the holder keeps the volume if it has not given it up yet", suggest.Command("volctl volume status %s", o.volume))
	}
	if err != nil {
		return command.Failed(command.Explain(ctx, client, err, o.volume), "move volume %q", o.volume)
	}

	return out.Print(m, []string{o.volume}, func(w *bytes.Buffer) error {
		switch {
		case m.Taken:
			fmt.Fprintf(w, "moved volume %q from host %q to host %q\n", m.Volume, m.From, m.To)
		case m.ReservedFor != "":
			fmt.Fprintf(w, "moved volume %q from host %q; it is reserved for a claim on host %q for %s\n", m.Volume, m.From, m.To, m.ReservedFor)
		default:
			fmt.Fprintf(w, "moved volume %q from host %q; no host uses it\n", m.Volume, m.From)
		}
		return nil
	})
}

// moveProgress names the claims and mounts that keep the volume on its host.
func moveProgress(client *apiclient.Client, id string) output.Status {
	return func(ctx context.Context) string {
		v, _, err := client.AnyVolume(ctx, id)
		if err != nil {
			return ""
		}
		return moveNote(v)
	}
}

// moveNote returns the state of the move of a volume.
func moveNote(v *api.Volume) string {
	if v.Move == nil {
		return ""
	}
	return v.Move.Summary
}
