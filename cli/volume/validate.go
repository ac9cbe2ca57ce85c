package volume

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

type validateOptions struct {
	offline bool
	file    volumeFile
}

func newValidate(a *command.App) *cobra.Command {
	var o validateOptions
	cmd := &cobra.Command{
		Use: "validate FILE|-", Short: "Check a volume file and show its effect",
		Long: `Check a volume file (- is stdin), then ask the agent for its effect. The command changes nothing.
It tries a volume with an external_id as register does, and a volume without one as create does.
It shows each change of a field with the old and the new value, and each refusal. With --offline,
the command checks only the file and needs no agent.`,
		Example: `  volctl volume validate data.yaml
  volctl volume validate --offline data.yaml`,
		Args: command.Exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Do(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
				if err := o.file.read(ctx, a, args[0]); err != nil {
					return err
				}
				return runValidate(ctx, o, client, out)
			})
		},
	}

	cmd.Flags().SortFlags = false
	o.file.flag(a, cmd)
	cmd.Flags().BoolVar(&o.offline, "offline", false, "check only the file, without the agent")

	return cmd
}

// validated is the JSON output for a volume.
type validated struct {
	ID string `json:"id"`

	// Outcome is the result that the file would have if it were registered or used to create the
	// volume: created, registered, updated or unchanged. It is empty if volctl did not ask the
	// agent.
	Outcome string   `json:"outcome,omitempty"`
	Changes []string `json:"changes,omitempty"`

	// Warnings lists actions that a person must take outside volagent.
	Warnings []string `json:"warnings,omitempty"`
}

func runValidate(ctx context.Context, o validateOptions, client *apiclient.Client, out *output.Printer) error {
	o.file.warn(out)
	if !o.offline {
		if err := o.file.settle(ctx, client); command.CodeOf(err) == api.CodeUnreachable {
			return notAsked(err)
		} else if err != nil {
			return err
		}
	}

	var errs []error
	verdicts, ids := []validated{}, []string{}
	for _, s := range o.file.specs {
		v := validated{ID: s.ID, Warnings: o.file.warnings[s.ID]}
		if !o.offline {
			r, err := dryRun(ctx, s, client)
			if command.CodeOf(err) == api.CodeUnreachable {
				return notAsked(err)
			}
			if ctx.Err() != nil {
				return command.Failed(err, "use volume %q", s.ID)
			}
			if err != nil {
				errs = append(errs, command.Failed(explain(ctx, client, err, s), "use volume %q", s.ID))
				continue
			}

			v.Outcome, v.Changes = r.Outcome, r.Changes
		}

		verdicts, ids = append(verdicts, v), append(ids, v.ID)
		if err := out.Say("%s", v.sentence()); err != nil {
			return err
		}
	}

	if !out.Human() || out.Quiet {
		if err := out.Print(verdicts, ids, nil); err != nil {
			return err
		}
	}

	return command.Join(errs)
}

// notAsked returns the error if the agent cannot be reached.
func notAsked(err error) error {
	return command.Failed(command.Hinted(err, command.Wire(err).Hint+"; or check the file alone with --offline"),
		"ask the agent for the changes (the file itself is well-formed)")
}

func dryRun(ctx context.Context, s api.VolumeSpec, client *apiclient.Client) (*api.VolumeResult, error) {
	if s.ExternalID != "" {
		return client.RegisterVolume(ctx, s, true)
	}
	return client.CreateVolume(ctx, s, true)
}

func (v validated) sentence() string {
	subject := "volume " + output.QuotedList([]string{v.ID})
	switch {
	case v.Outcome == "":
		return subject + " is well-formed; the agent was not asked"
	case v.Outcome == api.OutcomeUnchanged:
		return subject + " would be unchanged"
	case len(v.Changes) > 0:
		return subject + " would be " + v.Outcome + ": " + strings.Join(v.Changes, "; ")
	default:
		return subject + " would be " + v.Outcome
	}
}
