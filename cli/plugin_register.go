package cli

import (
	"bytes"
	"context"
	"time"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
)

type pluginRegisterOptions struct {
	name    string // of the file, for errors
	text    []byte
	timeout time.Duration
	noWait  bool
}

func newPluginRegister(a *app) *cobra.Command {
	var o pluginRegisterOptions
	cmd := &cobra.Command{
		Use: "register FILE|-", Short: "Give the agent a plugin without a file in its directory",
		Long: `Give the agent the plugin of a file (- is stdin), of the same form as those in its plugin
directory, and wait until it is ready. The agent keeps it until "volctl plugin deregister", over
restarts and reboots; the file is not read again.

For a plugin that is registered already this changes it: at once, or while volumes are in use
through it when they have left (with on_change: restart at once). An unchanged one is left as
it is, with exit code 0. One that stands in a file of the plugin directory is refused (4).
A plugin that does not become ready stays registered; the exit code is 6 then.`,
		Example: "  volctl plugin register ebs.yaml", Args: exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkTimeout(o.timeout); err != nil {
				return failed(err, "register the plugin")
			}

			return a.do(cmd, func(ctx context.Context, client *apiclient.Client, out *output) (err error) {
				if o.name, o.text, err = a.readFile(ctx, args[0]); err != nil {
					return err
				}
				return runPluginRegister(ctx, o, client, out)
			})
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.DurationVar(&o.timeout, "timeout", claimTimeout, "how long to wait until it is ready; it goes on after that")
	f.BoolVar(&o.noWait, "no-wait", false, "do not wait; it goes on")

	return cmd
}

func runPluginRegister(ctx context.Context, o pluginRegisterOptions, client *apiclient.Client, out *output) error {
	wait := o.timeout
	if o.noWait {
		wait = 0
	}

	call, cancel := context.WithTimeout(ctx, o.timeout+answerGrace)
	defer cancel()

	r, err := client.RegisterPlugin(call, o.name, o.text, wait)
	if err != nil && ctx.Err() != nil {
		err = interrupted("it was interrupted; the plugin may be registered", "volctl plugin list")
	}

	if err != nil {
		return failed(err, "register the plugin")
	}

	return out.print(r, []string{r.Plugin.ID}, func(w *bytes.Buffer) error {
		id := quotedList([]string{r.Plugin.ID})
		said := r.Outcome + " plugin " + id

		if r.Outcome == "unchanged" {
			said = "plugin " + id + " is unchanged"
		}

		switch {
		case r.Plugin.Pending != "":
			said += "; pending: " + oneLine(r.Plugin.Pending)
		case r.Plugin.State == api.PluginStopped && r.Plugin.Reason != "" && !o.noWait:
			said += "; it is stopped " + oneLine(r.Plugin.Reason)
		}

		w.WriteString(said + "\n")
		return nil
	})
}
