package plugin

import (
	"bytes"
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

type registerOptions struct {
	name    string // the name of the file, for error messages
	text    []byte
	timeout time.Duration
	noWait  bool
}

func newRegister(a *command.App) *cobra.Command {
	var o registerOptions
	cmd := &cobra.Command{
		Use: "register FILE|-", Short: "Register a plugin without a file in the plugin directory",
		Long: `Register the plugin that a file describes (- is stdin), and wait until it is ready. The file has
the same form as those in the plugin directory. The agent keeps the plugin until you run
"volctl plugin deregister", even after restarts and reboots. The agent does not read the file
again.

If the plugin is registered already, the command changes it. The change takes effect at once,
unless volumes are in use through the plugin. Then it takes effect when no volume is in use any
longer, or at once with on_change: restart. An unchanged plugin stays as it is, with exit code 0.
If a file of the plugin directory defines the plugin, the command is refused (4). A plugin that
does not become ready stays registered, and the exit code is 6.`,
		Example: "  volctl plugin register ebs.yaml", Args: command.Exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := command.CheckTimeout(o.timeout); err != nil {
				return command.Failed(err, "register the plugin")
			}

			return a.Do(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) (err error) {
				if o.name, o.text, err = a.ReadFile(ctx, args[0]); err != nil {
					return err
				}
				return runRegister(ctx, o, client, out)
			})
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	command.DurationVar(f, &o.timeout, "timeout", command.ClaimTimeout, "how long to wait until it is ready; the agent continues after that")
	f.BoolVar(&o.noWait, "no-wait", false, "do not wait; the agent continues")

	return cmd
}

func runRegister(ctx context.Context, o registerOptions, client *apiclient.Client, out *output.Printer) error {
	wait := o.timeout
	if o.noWait {
		wait = 0
	}

	call, cancel := context.WithTimeout(ctx, o.timeout+command.AnswerGrace)
	defer cancel()

	r, err := client.RegisterPlugin(call, o.name, o.text, wait)
	if err != nil && ctx.Err() != nil {
		err = command.Interrupted("it was interrupted; the plugin may be registered", "volctl plugin list")
	}

	if err != nil {
		return command.Failed(err, "register the plugin")
	}

	return out.Print(r, []string{r.Plugin.ID}, func(w *bytes.Buffer) error {
		id := output.QuotedList([]string{r.Plugin.ID})
		said := r.Outcome + " plugin " + id

		if r.Outcome == api.OutcomeUnchanged {
			said = "plugin " + id + " is unchanged"
		}

		switch {
		case r.Plugin.Pending != "":
			said += "; pending: " + output.OneLine(r.Plugin.Pending)
		case r.Plugin.State == api.PluginStopped && r.Plugin.Reason != "" && !o.noWait:
			said += "; it is stopped " + output.OneLine(r.Plugin.Reason)
		}

		w.WriteString(said + "\n")
		return nil
	})
}
