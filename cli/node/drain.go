package node

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

const (
	// drainTurn limits a single request to the agent. A longer drain needs several requests. Each
	// request also makes the agent retry failed steps immediately.
	drainTurn = 10 * time.Minute
	// drainAbsent is how long volctl waits for an agent that has disconnected, because the agent
	// may be restarting.
	drainAbsent = time.Minute
)

type drainOptions struct {
	deadline time.Duration
	limited  bool // whether the user has set a deadline
}

func newDrain(a *command.App) *cobra.Command {
	var o drainOptions
	cmd := &cobra.Command{
		Use: "drain", Short: "Detach and unmount all volumes of this host, for maintenance",
		Long: `Detach and unmount all volumes of this host. The agent refuses new claims until you run
volctl node undrain, even after a restart of the agent or the host. It detaches the claims that
have no live owner, as volctl volume detach --all does. The command lists the services, processes,
mounts and containers that you must stop first, each with a command. Their claims end when they
stop.

The command ends with "safe to power off" when no claim remains, no volume is staged or attached,
and no plugin call is pending. Without --deadline, it waits for that until you interrupt it. Use
--deadline in scripts. After the deadline, the command exits 5 and lists the remaining volumes and
their users. --deadline 0 does not wait. The host stays drained in every case, and the agent
continues its work. To retry failed steps at once, run the same command again. With -o json, the
command prints {safe, waiting, left}.`,
		Example: `  volctl node drain
  volctl node drain --deadline 5m && systemctl poweroff`,
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.limited = cmd.Flags().Changed("deadline"); o.deadline < 0 {
				return command.Usage("--deadline 5m", "--deadline %s is in the past", o.deadline)
			}
			return a.Do(cmd, o.run)
		},
	}

	command.DurationVar(cmd.Flags(), &o.deadline, "deadline", 0, "exit 5 if the drain is not complete after `D`; 0 does not wait (default: wait until it is complete)")
	return cmd
}

func (o drainOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	until := time.Now().Add(o.deadline)
	first, cancel := context.WithTimeout(ctx, command.ReadTimeout)
	defer cancel()

	d, err := client.Drain(first, 0)
	if err != nil {
		return command.Failed(err, "drain this host")
	}

	title := waitingTitle
	if !d.Safe && (!o.limited || o.deadline > 0) {
		title = "still " + title
		if err := announce(out, d); err != nil {
			return err
		}
		end := out.During(ctx, "draining this host", drainProgress(client))
		d, err = o.wait(ctx, client, until)
		end()
	}

	switch {
	case err != nil && ctx.Err() != nil:
		err = command.Interrupted("it was interrupted; the host stays drained, and the steps that have begun continue", "volctl node drain waits again; volctl node undrain allows claims again")
		fallthrough
	case err != nil:
		return command.Failed(err, "drain this host")
	}

	if err := out.Print(d, volumesIn(d), func(w *bytes.Buffer) error { return drainScreen(w, out, d, title) }); err != nil || d.Safe {
		return err
	}

	return command.Failed(&api.Error{
		Code: api.CodeTimeout, Message: fmt.Sprintf("it has not finished after %s: %s; the host stays drained", o.deadline, inTheWay(d)),
		Hint: "stop the listed users, then: volctl node drain; or allow claims again: volctl node undrain",
	}, "drain this host")
}

// wait waits until the agent reports the end of the drain. If the agent restarts, wait repeats the
// request.
func (o *drainOptions) wait(ctx context.Context, client *apiclient.Client, until time.Time) (*api.Drain, error) {
	var gone time.Time // when the agent stopped answering, or zero
	for {
		turn := drainTurn
		if o.limited {
			turn = min(turn, max(time.Until(until), time.Millisecond))
		}

		call, cancel := context.WithTimeout(ctx, turn+command.AnswerGrace)
		d, err := client.Drain(call, turn)
		cancel()

		over := o.limited && time.Until(until) <= 0
		switch {
		case err == nil && (d.Safe || over):
			return d, nil
		case err == nil:
			gone = time.Time{}
			continue
		case command.CodeOf(err) != api.CodeUnreachable || over:
			return nil, err
		case gone.IsZero():
			gone = time.Now()
		case time.Since(gone) > drainAbsent:
			return nil, err
		}

		if err := command.Sleep(ctx, command.RetryEvery); err != nil {
			return nil, err
		}
	}
}

func newUndrain(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use: "undrain", Short: "Accept claims again after a drain", Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.Read(cmd, runUndrain) },
	}
}

func runUndrain(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	u, err := client.Undrain(ctx)
	if err != nil {
		return command.Failed(err, "undrain this host")
	}

	return out.Print(u, nil, func(w *bytes.Buffer) error {
		if u.WasDraining {
			w.WriteString("claims are accepted again\n")
			return nil
		}
		return output.NothingToDo(w)
	})
}

// announce lists the users of volumes that the operator must now stop. The command prints this list
// before it waits until they have ended.
func announce(out *output.Printer, d *api.Drain) error {
	if !out.Human() || out.Quiet || len(d.Waiting) == 0 {
		return nil
	}

	var w bytes.Buffer
	if err := occupants(&w, out, d.Waiting, waitingTitle); err != nil {
		return err
	}

	_, err := out.Stderr.Write(w.Bytes())
	return err
}

const waitingTitle = "to be stopped by you:"

func drainScreen(w *bytes.Buffer, out *output.Printer, d *api.Drain, title string) error {
	if d.Safe {
		w.WriteString("safe to power off\n")
		return nil
	}
	if err := occupants(w, out, d.Waiting, title); err != nil {
		return err
	}
	return occupants(w, out, d.Left, "still on this host:")
}

// occupants writes a table of the claims and leftovers that are still on the host.
func occupants(w *bytes.Buffer, out *output.Printer, list []api.Occupant, title string) error {
	if len(list) == 0 {
		return nil
	}

	w.WriteString(title + "\n")
	rows := make([][]string, len(list))
	for i, o := range list {
		rows[i] = []string{output.Dash(o.Volume), output.Dash(o.Alloc), cmp.Or(o.Owner, o.Message), output.Arrow(o.Command)}
		if o.Else != "" {
			rows[i][3] += "; else: " + o.Else
		}
	}

	return out.Table(w, "  ", nil, rows)
}

// drainProgress describes the claims and leftovers for which the drain waits, in one line.
func drainProgress(client *apiclient.Client) output.Status {
	return func(ctx context.Context) string {
		n, err := client.Node(ctx)
		if err != nil || n.Drain == nil || n.Drain.Safe {
			return ""
		}
		return inTheWay(n.Drain)
	}
}

// inTheWay returns a text with the number of claims and leftovers that are still on the host.
func inTheWay(d *api.Drain) string {
	held, left := "", ""
	if n := len(d.Waiting); n > 0 {
		held = output.Count(n, "claim") + " held by a live owner"
	}
	if n := len(d.Left); n > 0 {
		left = fmt.Sprintf("%d more still on this host", n)
	}
	return output.Joined(", ", held, left)
}

// volumesIn returns the ids of the volumes that are still on the host.
func volumesIn(d *api.Drain) []string {
	var ids []string
	for _, o := range slices.Concat(d.Waiting, d.Left) {
		if o.Volume != "" && !slices.Contains(ids, o.Volume) {
			ids = append(ids, o.Volume)
		}
	}
	return ids
}
