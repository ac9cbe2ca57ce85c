package volume

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

// NewClaims returns the command group "volctl claim".
func NewClaims(a *command.App) *cobra.Command {
	return command.Group("claim", "Show which allocs use which volumes", "", NewClaimList(a))
}

type claimListOptions struct{ filter apiclient.ClaimFilter }

// NewClaimList returns the command "volctl claim list".
func NewClaimList(a *command.App) *cobra.Command {
	var o claimListOptions
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the claims",
		Long: `List the claims. With -q, each line is a volume and an alloc, separated by a tab. --volume and
--plugin accept a unique prefix of an id. --alloc needs the exact name.`,
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.Read(cmd, o.run)
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.filter.Volume, "volume", "", "show only claims on volume `ID`")
	f.StringVar(&o.filter.Alloc, "alloc", "", "show only claims of `ALLOC`")
	f.StringVar(&o.filter.Plugin, "plugin", "", "show only claims on volumes of plugin `ID`")
	command.CompleteFlag(a, cmd, "volume", command.VolumeIDs)
	command.CompleteFlag(a, cmd, "plugin", command.PluginIDs)

	return cmd
}

func (o claimListOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	if err := o.complete(ctx, client); err != nil {
		return command.Failed(err, "list claims")
	}

	claims, err := client.Claims(ctx, o.filter)
	if err != nil {
		return command.Failed(err, "list claims")
	}

	slices.SortStableFunc(claims, func(x, y api.Claim) int {
		return cmp.Or(cmp.Compare(x.Volume, y.Volume), x.Since.Compare(y.Since), cmp.Compare(x.Alloc, y.Alloc))
	})

	ids, rows := make([]string, len(claims)), make([][]string, len(claims))
	for i, c := range claims {
		ids[i] = c.Volume + "\t" + c.Alloc
		rows[i] = []string{c.Volume, c.Alloc, output.ReadWrite(c.ReadOnly), output.Joined(", ", c.State, c.Remark), ownerText(&c), output.Since(out.Now(), c.Since), output.Dash(c.Path)}
		if out.Wide() {
			rows[i] = append(rows[i], c.PluginID, output.Dash(c.AccessMode), output.Dash(c.AttachmentMode), output.YesNo(c.Wanted))
		}
	}

	return out.Print(claims, ids, func(w *bytes.Buffer) error {
		header := []string{"Volume", "Alloc", "Mode", "State", "Owner", "Since", "Path"}
		if out.Wide() {
			header = append(header, "Plugin", "Access Mode", "Attachment Mode", "Wanted")
		}
		return out.Table(w, "", header, rows)
	})
}

// complete completes the prefixes of ids in the filter.
func (o *claimListOptions) complete(ctx context.Context, client *apiclient.Client) error {
	if o.filter.Volume != "" {
		v, err := command.FindVolume(ctx, client, o.filter.Volume)
		if err != nil {
			return err
		}
		o.filter.Volume = v.Spec.ID
	}

	if o.filter.Plugin != "" {
		p, err := command.FindPlugin(ctx, client, o.filter.Plugin)
		if err != nil {
			return err
		}
		o.filter.Plugin = p.ID
	}

	if o.filter.Alloc != "" {
		return command.CheckAlloc(o.filter.Alloc)
	}

	return nil
}

// claimState returns the state of a claim and its remark.
func claimState(c *api.Claim) string { return output.Joined(", ", c.State, c.Remark) }
