package volume

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

type deleteOptions struct {
	volume         string
	confirm        string
	ignoreNotFound bool
	ask            command.Asker
}

func newDelete(a *command.App) *cobra.Command {
	var (
		o   deleteOptions
		yes bool
	)

	cmd := &cobra.Command{
		Use: "delete ID -y", Short: "Destroy a volume and its data",
		Long: `Destroy a volume and its data. The command is refused while the volume has claims. On a terminal
it asks for confirmation. Without a terminal it needs -y. A volume that you registered also needs
--confirm=ID, because its data existed before. A volume that you created does not.

A shared volume is deleted for all hosts. The command is refused while any host holds it. Every host
can repeat a delete that did not finish.`,
		Example: "  volctl volume delete scratch -y",
		Args:    command.Exactly("ID"), ValidArgsFunction: command.CompleteArg(a, command.VolumeIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.volume, o.ask = args[0], a.Asker(yes)
			if err := o.check(yes); err != nil {
				return command.Failed(err, "delete volume %q", o.volume)
			}
			return a.Do(cmd, o.run)
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	f.StringVar(&o.confirm, "confirm", "", "repeat the `ID`, for a volume that was registered")
	f.BoolVar(&o.ignoreNotFound, "ignore-not-found", false, "exit 0 if the volume does not exist")
	command.NomadFlags(cmd.Flags(), "namespace", "type")

	return cmd
}

func (o *deleteOptions) check(yes bool) error {
	if err := command.CheckVolumeID(o.volume); err != nil {
		return err
	}
	if o.confirm != "" && o.confirm != o.volume {
		return command.Usage(suggest.Command("volctl volume delete %s -y --confirm=%s", o.volume, o.volume), "--confirm does not repeat the id")
	}
	if o.ask == nil && !yes {
		return command.Usage(suggest.Command("volctl volume delete %s -y", o.volume), "it destroys the data, and asking for confirmation needs a terminal")
	}

	return nil
}

func (o deleteOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	if o.ask != nil {
		switch err := o.deletable(ctx, client); {
		case command.IsNotFound(err) && o.ignoreNotFound:
			return out.Print(api.Done{}, nil, output.NothingToDo)
		case err != nil:
			return command.Failed(command.Explain(ctx, client, err, o.volume), "delete volume %q", o.volume)
		}

		question := "Destroy volume " + output.QuotedList([]string{o.volume}) + " and all its data?"
		if yes, err := o.ask(ctx, question); err != nil || !yes {
			return command.Failed(command.NotConfirmed(err), "delete volume %q", o.volume)
		}
	}

	r, err := client.DeleteVolume(ctx, o.volume, o.confirm)
	if ctx.Err() != nil && err != nil {
		again := suggest.Command("volctl volume delete %s -y", o.volume)
		if o.confirm != "" {
			again = suggest.Command("volctl volume delete %s -y --confirm=%s", o.volume, o.confirm)
		}
		return command.Failed(command.Interrupted("it was interrupted; it is unknown whether the data was destroyed", again), "delete volume %q", o.volume)
	}

	if command.IsNotFound(err) && o.ignoreNotFound {
		return out.Print(api.Done{}, nil, output.NothingToDo)
	}
	if err != nil {
		return command.Failed(command.Explain(ctx, client, err, o.volume), "delete volume %q", o.volume)
	}

	return out.Print(r, []string{o.volume}, done("deleted", o.volume, r.Left))
}

// deletable returns an error if the agent would refuse to delete the volume. The user is then not
// asked for confirmation. The agent itself repeats this check.
func (o *deleteOptions) deletable(ctx context.Context, client *apiclient.Client) error {
	v, err := client.Volume(ctx, o.volume)
	switch {
	case err != nil:
		return err
	case !v.Created && o.confirm == "":
		return &api.Error{
			Code: api.CodeRefused, Message: "it was registered, not created here; its data is destroyed only if it is named once more",
			Hint: suggest.Command("volctl volume delete %s --confirm=%s", o.volume, o.volume),
		}
	case len(v.Claims) > 0:
		held := make([]string, len(v.Claims))
		for i, c := range v.Claims {
			held[i] = fmt.Sprintf("%q (%s)", c.Alloc, c.State)
		}
		return &api.Error{
			Code: api.CodeRefused, Message: "it is claimed by " + strings.Join(held, ", "),
			Hint: suggest.Command("volctl volume status %s", o.volume),
		}
	}

	return nil
}
