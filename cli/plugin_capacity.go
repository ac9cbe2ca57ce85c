package cli

import (
	"bytes"
	"context"
	"errors"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/spec"
)

type pluginCapacityOptions struct {
	id                         string
	accessMode, attachmentMode string
	params, topology           []string
}

func newPluginCapacity(a *app) *cobra.Command {
	var o pluginCapacityOptions
	cmd := &cobra.Command{
		Use: "capacity ID", Short: "Ask a plugin how much capacity it has left",
		Long: `Ask a plugin how much capacity it has left for new volumes that match the flags. Some plugins
cannot answer. A unique prefix of the id is enough.`,
		Example: "  volctl plugin capacity ebs --param type=gp3 --topology zone=a",
		Args:    exactly("ID"), ValidArgsFunction: completeArg(a, pluginIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.id = args[0]
			q, err := o.request(cmd)
			if err != nil {
				return err
			}
			return a.do(cmd, func(ctx context.Context, client *apiclient.Client, out *output) error {
				return runPluginCapacity(ctx, o, q, client, out)
			})
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.StringArrayVar(&o.params, "param", nil, "`KEY=VALUE` parameter for creating the volumes; may be repeated")
	f.StringVar(&o.accessMode, "access-mode", spec.DefaultAccessMode, "access `MODE` of the volumes")
	f.StringVar(&o.attachmentMode, "attachment-mode", spec.DefaultAttachmentMode, "attachment `MODE` of the volumes: file-system or block-device")
	f.StringArrayVar(&o.topology, "topology", nil, "`KEY=VALUE` of the place from which the volumes must be reachable; may be repeated")
	completeChoice(cmd, "access-mode", spec.AccessModes())
	completeChoice(cmd, "attachment-mode", spec.AttachmentModes())

	return cmd
}

// request builds the request. It contains modes only if a flag names one.
func (o *pluginCapacityOptions) request(cmd *cobra.Command) (q api.CapacityRequest, err error) {
	if q.Parameters, err = keyValues("param", o.params); err != nil {
		return q, err
	}
	if q.Topology, err = keyValues("topology", o.topology); err != nil {
		return q, err
	}
	if !cmd.Flags().Changed("access-mode") && !cmd.Flags().Changed("attachment-mode") {
		return q, nil
	}

	q.Capabilities = []api.Capability{{AccessMode: o.accessMode, AttachmentMode: o.attachmentMode}}
	return q, errors.Join(oneOf("access-mode", o.accessMode, spec.AccessModes()), oneOf("attachment-mode", o.attachmentMode, spec.AttachmentModes()))
}

func runPluginCapacity(ctx context.Context, o pluginCapacityOptions, q api.CapacityRequest, client *apiclient.Client, out *output) error {
	p, err := findPlugin(ctx, client, o.id)
	if err != nil {
		return failed(err, "ask plugin %q for its capacity", o.id)
	}

	c, err := client.PluginCapacity(ctx, p.ID, q)
	if err != nil {
		return failed(explainPlugin(ctx, client, err, p.ID), "ask plugin %q for its capacity", p.ID)
	}

	return out.print(c, []string{p.ID}, func(w *bytes.Buffer) error {
		rows := [][]string{{"Available", size(c.Available)}}
		if c.Largest != nil {
			rows = append(rows, []string{"Largest volume", size(*c.Largest)})
		}
		if c.Smallest != nil {
			rows = append(rows, []string{"Smallest volume", size(*c.Smallest)})
		}
		return table(w, "", nil, rows)
	})
}
