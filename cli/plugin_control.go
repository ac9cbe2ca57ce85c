package cli

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
)

// pluginControl is what restart, stop and start have in common.
type pluginControl struct {
	id      string
	timeout time.Duration
	noWait  bool
}

// doing is what is done, as it is asked for, going on, and over.
type doing struct{ verb, going, over string }

func (o *pluginControl) flags(cmd *cobra.Command, wait string) {
	f := cmd.Flags()
	f.DurationVar(&o.timeout, "timeout", claimTimeout, wait)
	f.BoolVar(&o.noWait, "no-wait", false, "do not wait; it goes on")
}

func (o *pluginControl) check() error {
	if err := checkPluginID(o.id); err != nil {
		return err
	}
	return checkTimeout(o.timeout)
}

// run makes the request, waits for it unless told not to, and prints what was
// done.
func (o *pluginControl) run(ctx context.Context, client *apiclient.Client, out *output, force bool, do control, w doing) error {
	co, outcome := apiclient.ControlOptions{Force: force}, w.going
	if !o.noWait {
		co.Wait, outcome = o.timeout, w.over
	}
	call, cancel := context.WithTimeout(ctx, o.timeout+answerGrace)
	defer cancel()
	p, err := do(call, o.id, co)
	switch {
	case err == nil:
		return out.print(p, []string{p.ID}, func(b *bytes.Buffer) error {
			fmt.Fprintf(b, "%s plugin %s\n", outcome, quotedList([]string{p.ID}))
			return nil
		})
	case ctx.Err() != nil:
		err = interrupted("it was interrupted; what was asked for goes on", "volctl plugin status "+shellArg(o.id))
	default:
		err = explainPlugin(ctx, client, err, o.id)
	}
	return failed(err, "%s plugin %q", w.verb, o.id)
}

// control is a request of the client's about a plugin.
type control func(ctx context.Context, id string, o apiclient.ControlOptions) (*api.Plugin, error)
