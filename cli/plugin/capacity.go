package plugin

import (
	"bytes"
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

type capacityOptions struct {
	id                         string
	accessMode, attachmentMode string
	params, topology           []string
}

func newCapacity(a *command.App) *cobra.Command {
	var o capacityOptions
	cmd := &cobra.Command{
		Use: "capacity ID", Short: "Ask a plugin how much capacity it has left",
		Long: `Ask a plugin how much capacity it has left for new volumes that match the flags. Some plugins
cannot answer. A unique prefix of the id is enough.`,
		Example: "  volctl plugin capacity ebs --param type=gp3 --topology zone=a",
		Args:    command.Exactly("ID"), ValidArgsFunction: command.CompleteArg(a, command.PluginIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.id = args[0]
			q, err := o.request(cmd)
			if err != nil {
				return err
			}
			return a.Do(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
				return runCapacity(ctx, o, q, client, out)
			})
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.StringArrayVar(&o.params, "param", nil, "`KEY=VALUE` parameter for creating the volumes; may be repeated")
	f.StringVar(&o.accessMode, "access-mode", spec.DefaultAccessMode, "access `MODE` of the volumes")
	f.StringVar(&o.attachmentMode, "attachment-mode", spec.DefaultAttachmentMode, "attachment `MODE` of the volumes: file-system or block-device")
	f.StringArrayVar(&o.topology, "topology", nil, "`KEY=VALUE` of the place from which the volumes must be reachable; may be repeated")
	command.CompleteChoice(cmd, "access-mode", spec.AccessModes())
	command.CompleteChoice(cmd, "attachment-mode", spec.AttachmentModes())

	return cmd
}

// request builds the request to the agent. It contains an access or attachment mode only if the
// user has set one.
func (o *capacityOptions) request(cmd *cobra.Command) (q api.CapacityRequest, err error) {
	if q.Parameters, err = command.KeyValues("param", o.params); err != nil {
		return q, err
	}
	if q.Topology, err = command.KeyValues("topology", o.topology); err != nil {
		return q, err
	}
	if !cmd.Flags().Changed("access-mode") && !cmd.Flags().Changed("attachment-mode") {
		return q, nil
	}

	q.Capabilities = []api.Capability{{AccessMode: o.accessMode, AttachmentMode: o.attachmentMode}}
	return q, errors.Join(command.OneOf("access-mode", o.accessMode, spec.AccessModes()), command.OneOf("attachment-mode", o.attachmentMode, spec.AttachmentModes()))
}

func runCapacity(ctx context.Context, o capacityOptions, q api.CapacityRequest, client *apiclient.Client, out *output.Printer) error {
	p, err := command.FindPlugin(ctx, client, o.id)
	if err != nil {
		return command.Failed(err, "ask plugin %q for its capacity", o.id)
	}

	c, err := client.PluginCapacity(ctx, p.ID, q)
	if err != nil {
		return command.Failed(command.ExplainPlugin(ctx, client, err, p.ID), "ask plugin %q for its capacity", p.ID)
	}

	return out.Print(c, []string{p.ID}, func(w *bytes.Buffer) error {
		rows := [][]string{{"Available", output.Size(c.Available)}}
		if c.Largest != nil {
			rows = append(rows, []string{"Largest volume", output.Size(*c.Largest)})
		}
		if c.Smallest != nil {
			rows = append(rows, []string{"Smallest volume", output.Size(*c.Smallest)})
		}
		return out.Table(w, "", nil, rows)
	})
}
