package cli

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
)

func newClaim(a *app) *cobra.Command {
	return group("claim", "Show which allocs use which volumes", "", newClaimList(a))
}

type claimListOptions struct{ filter apiclient.ClaimFilter }

func newClaimList(a *app) *cobra.Command {
	var o claimListOptions
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the claims",
		Long: `List the claims. With -q, each line is a volume and an alloc, separated by a tab. --volume and
--plugin accept a unique prefix of an id. --alloc needs the exact name.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.read(cmd, func(ctx context.Context, client *apiclient.Client, out *output) error {
				return runClaimList(ctx, o, client, out)
			})
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.filter.Volume, "volume", "", "show only claims on volume `ID`")
	f.StringVar(&o.filter.Alloc, "alloc", "", "show only claims of `ALLOC`")
	f.StringVar(&o.filter.Plugin, "plugin", "", "show only claims on volumes of plugin `ID`")
	completeFlag(a, cmd, "volume", volumeIDs)
	completeFlag(a, cmd, "plugin", pluginIDs)

	return cmd
}

func runClaimList(ctx context.Context, o claimListOptions, client *apiclient.Client, out *output) error {
	if err := o.complete(ctx, client); err != nil {
		return failed(err, "list claims")
	}

	claims, err := client.Claims(ctx, o.filter)
	if err != nil {
		return failed(err, "list claims")
	}

	slices.SortStableFunc(claims, func(x, y api.Claim) int {
		return cmp.Or(cmp.Compare(x.Volume, y.Volume), x.Since.Compare(y.Since), cmp.Compare(x.Alloc, y.Alloc))
	})

	ids, rows := make([]string, len(claims)), make([][]string, len(claims))
	for i, c := range claims {
		ids[i] = c.Volume + "\t" + c.Alloc
		rows[i] = []string{c.Volume, c.Alloc, readWrite(c.ReadOnly), joined(", ", c.State, c.Remark), ownerText(&c), since(out.now(), c.Since), dash(c.Path)}
		if out.wide() {
			rows[i] = append(rows[i], c.PluginID, dash(c.AccessMode), dash(c.AttachmentMode), yesNo(c.Wanted))
		}
	}

	return out.print(claims, ids, func(w *bytes.Buffer) error {
		header := []string{"Volume", "Alloc", "Mode", "State", "Owner", "Since", "Path"}
		if out.wide() {
			header = append(header, "Plugin", "Access Mode", "Attachment Mode", "Wanted")
		}
		return table(w, "", header, rows)
	})
}

// complete replaces prefixes of ids by whole ids.
func (o *claimListOptions) complete(ctx context.Context, client *apiclient.Client) error {
	if o.filter.Volume != "" {
		v, err := findVolume(ctx, client, o.filter.Volume)
		if err != nil {
			return err
		}
		o.filter.Volume = v.Spec.ID
	}

	if o.filter.Plugin != "" {
		p, err := findPlugin(ctx, client, o.filter.Plugin)
		if err != nil {
			return err
		}
		o.filter.Plugin = p.ID
	}

	if o.filter.Alloc != "" {
		return checkAlloc(o.filter.Alloc)
	}

	return nil
}

// claimState returns a claim's state with its remark.
func claimState(c *api.Claim) string { return joined(", ", c.State, c.Remark) }
