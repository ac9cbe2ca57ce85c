package plugin

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

// controlOptions holds the options that the commands restart, stop, start and deregister share.
type controlOptions struct {
	id      string
	part    apiclient.Part
	timeout time.Duration
	noWait  bool
}

// doing holds three forms of a verb for messages: the infinitive, the present participle and the
// past participle.
type doing struct{ verb, going, over string }

func (o *controlOptions) flags(cmd *cobra.Command, wait string) {
	f := cmd.Flags()
	command.DurationVar(f, &o.timeout, "timeout", command.ClaimTimeout, wait)
	f.BoolVar(&o.noWait, "no-wait", false, "do not wait; the agent continues")
	partFlags(cmd, &o.part)
}

// partFlags adds the flags that restrict a command to certain parts of a plugin.
func partFlags(cmd *cobra.Command, to *apiclient.Part) {
	f := cmd.Flags()
	f.StringVar(&to.Type, "type", "", "select only the parts of this `TYPE`: node or controller")
	f.StringVar(&to.Instance, "instance", "", "select only the part with this `NAME`")
}

// checkPart returns a usage error for an unknown type of part.
func checkPart(p apiclient.Part) error {
	if !slices.Contains([]string{"", api.PartNode, api.PartController, api.PartMonolith}, p.Type) {
		return command.Usage("", "--type %q is neither node nor controller", p.Type)
	}
	return nil
}

// partWords describes the selected parts for a message, such as ` controller "a" of`.
func partWords(p apiclient.Part) string {
	switch {
	case p.Instance != "":
		return " " + output.Joined(" ", p.Type, strconv.Quote(p.Instance), "of")
	case p.Type != "":
		return " " + p.Type + " of"
	default:
		return ""
	}
}

func (o *controlOptions) check() error {
	if err := command.CheckPluginID(o.id); err != nil {
		return err
	}
	if err := checkPart(o.part); err != nil {
		return err
	}
	return command.CheckTimeout(o.timeout)
}

// action returns a RunE function that checks the options and then calls run.
func (o *controlOptions) action(
	a *command.App, verb string, run func(context.Context, *apiclient.Client, *output.Printer) error,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		o.id = args[0]
		if err := o.check(); err != nil {
			return command.Failed(err, "%s plugin %q", verb, o.id)
		}
		return a.Do(cmd, run)
	}
}

// send sends the request and prints the result. Unless noWait is set, it waits for the end of the
// operation.
func (o *controlOptions) send(ctx context.Context, client *apiclient.Client, out *output.Printer, force bool, do control, w doing) error {
	co, outcome := apiclient.ControlOptions{Force: force, Part: o.part}, w.going
	if !o.noWait {
		co.Wait, outcome = o.timeout, w.over
	}

	call, cancel := context.WithTimeout(ctx, o.timeout+command.AnswerGrace)
	defer cancel()

	p, err := do(call, o.id, co)
	if err != nil {
		return command.Failed(o.explain(ctx, client, err), "%s%s plugin %q", w.verb, partWords(o.part), o.id)
	}

	return out.Print(p, []string{p.ID}, func(b *bytes.Buffer) error {
		fmt.Fprintf(b, "%s%s plugin %s\n", outcome, partWords(o.part), output.QuotedList([]string{p.ID}))
		return nil
	})
}

// explain returns the error of a request with more details. If the user interrupted the command,
// the error says that the request continues.
func (o *controlOptions) explain(ctx context.Context, client *apiclient.Client, err error) error {
	if ctx.Err() != nil {
		return command.Interrupted("it was interrupted; the request continues", suggest.Command("volctl plugin status %s", o.id))
	}
	return command.ExplainPlugin(ctx, client, err, o.id)
}

// breaks describes the FUSE mounts that fail when the plugin's process ends.
func breaks(p *api.Plugin) string {
	switch p.FUSEClaims {
	case 0:
		return "no claim has a FUSE mount that could break with it"
	case 1:
		return "1 claim has a FUSE mount, which breaks if the plugin's process serves it"
	default:
		return fmt.Sprintf("%d claims have FUSE mounts, which break if the plugin's process serves them", p.FUSEClaims)
	}
}

// control sends a request about a plugin to the agent.
type control func(ctx context.Context, id string, o apiclient.ControlOptions) (*api.Plugin, error)
