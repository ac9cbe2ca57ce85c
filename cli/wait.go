package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

type waitOptions struct {
	plugin, volume, state string
	timeout               time.Duration
}

func newWait(a *command.App) *cobra.Command {
	var o waitOptions
	cmd := &cobra.Command{
		Use: "wait [--plugin P | --volume V --for mounted|free]", Short: "Wait for the agent, a plugin, or a volume",
		Long: `Wait until the agent answers, until a plugin is ready, or until a volume is mounted or free. In
each case, the command also waits for an agent that does not answer yet. It prints nothing. The
exit code is the answer, and 5 means that the time is over.`,
		Example: `  volctl wait
  volctl wait --plugin local --timeout 2m
  volctl wait --volume data --for free`,
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			return a.Do(cmd, func(ctx context.Context, client *apiclient.Client, _ *output.Printer) error {
				return runWait(ctx, o, client)
			})
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.plugin, "plugin", "", "wait until plugin `ID` is ready")
	f.StringVar(&o.volume, "volume", "", "wait for volume `ID`")
	f.StringVar(&o.state, "for", "", "`STATE` of the volume to wait for: mounted or free")
	command.DurationVar(f, &o.timeout, "timeout", command.ClaimTimeout, "how long to wait")
	command.CompleteFlag(a, cmd, "plugin", command.PluginIDs)
	command.CompleteFlag(a, cmd, "volume", command.VolumeIDs)
	command.CompleteChoice(cmd, "for", []string{apiclient.ForMounted, apiclient.ForFree})

	return cmd
}

func (o *waitOptions) check(cmd *cobra.Command) error {
	named := cmd.Flags().Changed
	switch {
	case named("plugin") && named("volume"):
		return command.Usage("", "--plugin and --volume exclude each other")
	case named("volume") != named("for"):
		return command.Usage("volctl wait --volume ID --for mounted", "--volume and --for belong together")
	case named("plugin"):
		if err := command.CheckPluginID(o.plugin); err != nil {
			return err
		}
	case named("volume"):
		if err := command.CheckVolumeID(o.volume); err != nil {
			return err
		}
		if err := command.OneOf("for", o.state, []string{apiclient.ForMounted, apiclient.ForFree}); err != nil {
			return err
		}
	}

	return command.CheckTimeout(o.timeout)
}

func runWait(ctx context.Context, o waitOptions, client *apiclient.Client) error {
	deadline := time.Now().Add(o.timeout)

	ctx, cancel := context.WithDeadline(ctx, deadline.Add(command.AnswerGrace))
	defer cancel()

	for {
		err := o.once(ctx, client, deadline)
		if command.CodeOf(err) != api.CodeUnreachable {
			return command.Failed(err, "wait for %s", o.what())
		}
		if time.Until(deadline) < command.RetryEvery {
			return command.Failed(&api.Error{Code: api.CodeTimeout, Message: fmt.Sprintf("after %s: %v", o.timeout, err), Hint: command.Wire(err).Hint}, "wait for %s", o.what())
		}
		if err := command.Sleep(ctx, command.RetryEvery); err != nil {
			return command.Failed(err, "wait for %s", o.what())
		}
	}
}

// once asks the agent to wait for the requested state until the deadline. If no plugin or volume is
// given, it only checks that the agent answers.
func (o *waitOptions) once(ctx context.Context, client *apiclient.Client, deadline time.Time) error {
	left := func() time.Duration { return max(time.Until(deadline), time.Millisecond) }
	switch {
	case o.plugin != "":
		p, err := command.FindPlugin(ctx, client, o.plugin)
		if err != nil || p.State == api.PluginReady {
			return err
		}
		_, err = client.WaitPlugin(ctx, p.ID, left())
		return err
	case o.volume != "":
		v, err := command.FindVolume(ctx, client, o.volume)
		if err != nil || v.State == o.state {
			return err
		}
		_, err = client.WaitVolume(ctx, v.Spec.ID, o.state, left())
		return err
	default:
		// The health check must not exceed the deadline, so that the command fails at the deadline
		// if an agent accepts the connection but never answers.
		ctx, cancel := context.WithDeadline(ctx, deadline)
		defer cancel()

		_, err := client.Health(ctx)
		return err
	}
}

func (o *waitOptions) what() string {
	switch {
	case o.plugin != "":
		return fmt.Sprintf("plugin %q to be ready", o.plugin)
	case o.volume != "":
		return fmt.Sprintf("volume %q to be %s", o.volume, o.state)
	default:
		return "the agent"
	}
}
