package state

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

type restoreOptions struct {
	file   string
	dryRun bool
	stdin  io.Reader
}

func newRestore(a *command.App) *cobra.Command {
	var o restoreOptions
	cmd := &cobra.Command{
		Use: "restore FILE|-", Short: "Restore entries of a backup that the agent does not have",
		Long: `Restore the entries of a backup that the running agent does not have, all of them or none.
Existing entries stay as they are. The command lists them with their differences and overwrites
nothing.

The command restores volumes with their secret references and sealed secrets, registered plugins,
and intents of snapshots. It restores claims, mounts, pending calls and leftovers only from a
backup of the same node id and data dir. The agent then checks them as after a crash. It keeps
existing mounts, makes missing mounts again, and detaches claims whose owners are gone. The agent
checks the file first, and refuses a file that is damaged or from a newer release.

If an entry of the backup conflicts with this host, the agent refuses that entry and restores the
rest. The exit code is then 4.`,
		Example: `  volctl state restore volagent.db --dry-run
  volctl state restore volagent.db`,
		Args: command.Exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.file, o.stdin = args[0], a.Env.Stdin
			return a.Do(cmd, o.run)
		},
	}

	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "print the result of a restore, and change nothing")
	return cmd
}

func (o restoreOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	from := o.stdin
	if o.file != "-" {
		f, err := os.Open(o.file)
		if err != nil {
			return command.FileError(o.file, err)
		}
		defer f.Close() //nolint:errcheck // nothing was written

		if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() {
			return command.Usage("volctl state restore FILE", "%q is not a file", o.file)
		}

		from = f
	}

	r, err := client.Restore(ctx, from, o.dryRun)
	if err != nil {
		return command.Failed(err, "restore %q", o.file)
	}
	if err := out.Print(r, restoredVolumes(r), func(w *bytes.Buffer) error { return restoreScreen(w, r) }); err != nil {
		return err
	}
	if n := restoreCounts(r)[api.OutcomeRefused]; n > 0 {
		return command.Failed(&api.Error{
			Code: api.CodeRefused, Message: output.Count(n, "item") + " refused: a conflict with the agent's current state", Hint: "volctl volume list",
		}, "restore all of %q", o.file)
	}

	return nil
}

func restoreScreen(w *bytes.Buffer, r *api.Restore) error {
	w.WriteString("backup of node " + fmt.Sprintf("%q", r.Node))
	if !r.Taken.IsZero() {
		w.WriteString(", taken " + r.Taken.Format(time.RFC3339))
	}

	w.WriteString("\n")
	if !r.SameNode {
		w.WriteString("registrations alone: " + output.OneLine(r.Why) + "\n")
	}

	for _, i := range r.Items {
		outcome := i.Outcome
		if r.DryRun && outcome == api.OutcomeRestored {
			outcome = "would be restored"
		}

		fmt.Fprintf(w, "%s %s", i.Kind, output.QuotedList([]string{i.ID}))
		switch {
		case outcome == api.OutcomePresent && len(i.Notes) == 0:
			w.WriteString(" is there already")
		case outcome == api.OutcomePresent:
			w.WriteString(" is there already, and stays")
		default:
			w.WriteString(" " + outcome)
		}

		if len(i.Claims) > 0 {
			w.WriteString(" with the claims of " + output.QuotedList(i.Claims))
		}

		w.WriteString("\n")
		for _, n := range i.Notes {
			w.WriteString("  " + output.OneLine(n) + "\n")
		}
	}

	w.WriteString(restoreSummary(r) + "\n")
	return nil
}

func restoreSummary(r *api.Restore) string {
	n := restoreCounts(r)
	if len(r.Items) == n[api.OutcomePresent] {
		return "all entries exist already"
	}

	verb := "restored"
	if r.DryRun {
		verb = "would be restored"
	}

	words := []string{fmt.Sprintf("%d %s", n[api.OutcomeRestored], verb), fmt.Sprintf("%d there already", n[api.OutcomePresent])}
	for _, outcome := range []string{api.OutcomeRefused, api.OutcomeDropped} {
		if n[outcome] > 0 {
			words = append(words, fmt.Sprintf("%d %s", n[outcome], outcome))
		}
	}

	return strings.Join(words, ", ")
}

func restoreCounts(r *api.Restore) map[string]int {
	n := map[string]int{}
	for _, i := range r.Items {
		n[i.Outcome]++
	}
	return n
}

// restoredVolumes returns the ids of the restored volumes.
func restoredVolumes(r *api.Restore) []string {
	var ids []string
	for _, i := range r.Items {
		if i.Kind == "volume" && i.Outcome == api.OutcomeRestored {
			ids = append(ids, i.ID)
		}
	}
	return ids
}
