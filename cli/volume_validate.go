package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
)

type volumeValidateOptions struct {
	offline bool
	specs   []api.VolumeSpec
}

func newVolumeValidate(a *app) *cobra.Command {
	var o volumeValidateOptions
	cmd := &cobra.Command{
		Use: "validate FILE|-", Short: "Check a volume file and say what it would change",
		Long: `Check a volume file (- is stdin), then ask the agent what it would change. Nothing is
changed. A volume with an external_id is tried as with register, one without as with
create. With --offline only the file is checked, and no agent is needed.`,
		Example: `  volctl volume validate data.yaml
  volctl volume validate --offline data.yaml`,
		Args: exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.do(cmd, func(ctx context.Context, client *apiclient.Client, out *output) (err error) {
				if o.specs, err = a.readSpecs(ctx, args[0]); err != nil {
					return err
				}
				return runVolumeValidate(ctx, o, client, out)
			})
		},
	}
	cmd.Flags().BoolVar(&o.offline, "offline", false, "check the file alone, without the agent")
	return cmd
}

// validated is the verdict on one volume.
type validated struct {
	ID string `json:"id"`
	// Outcome is what would be done: created, registered, updated, unchanged;
	// empty when the agent was not asked.
	Outcome string   `json:"outcome,omitempty"`
	Changes []string `json:"changes,omitempty"`
}

func runVolumeValidate(ctx context.Context, o volumeValidateOptions, client *apiclient.Client, out *output) error {
	var errs []error
	verdicts, ids := []validated{}, []string{}
	for _, s := range o.specs {
		v := validated{ID: s.ID}
		if !o.offline {
			r, err := dryRun(ctx, s, client)
			if codeOf(err) == api.CodeUnreachable {
				return failed(hinted(err, "start it with systemctl start volagent, or check the file alone with --offline"),
					"ask what would change (the file itself is well-formed)")
			}
			if ctx.Err() != nil {
				return failed(err, "use volume %q", s.ID)
			}
			if err != nil {
				errs = append(errs, failed(explainPlugin(ctx, client, err, s.PluginID), "use volume %q", s.ID))
				continue
			}
			v.Outcome, v.Changes = r.Outcome, r.Changes
		}
		verdicts, ids = append(verdicts, v), append(ids, v.ID)
		if err := out.say("%s", v.sentence()); err != nil {
			return err
		}
	}
	if !out.human() || out.quiet {
		if err := out.print(verdicts, ids, nil); err != nil {
			return err
		}
	}
	return all(errs)
}

func dryRun(ctx context.Context, s api.VolumeSpec, client *apiclient.Client) (*api.VolumeResult, error) {
	if s.ExternalID != "" {
		return client.RegisterVolume(ctx, s, true)
	}
	return client.CreateVolume(ctx, s, true)
}

func (v validated) sentence() string {
	subject := "volume " + quotedList([]string{v.ID})
	switch {
	case v.Outcome == "":
		return subject + " is well-formed; the agent was not asked"
	case v.Outcome == "unchanged":
		return subject + " would be unchanged"
	case len(v.Changes) > 0:
		return subject + " would be " + v.Outcome + ": " + strings.Join(v.Changes, "; ")
	default:
		return subject + " would be " + v.Outcome
	}
}
