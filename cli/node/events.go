package node

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/humantime"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

type eventsOptions struct {
	since  string // as humantime.ParseTime reads it
	filter apiclient.EventFilter
}

// NewEvents returns the command "volctl events".
func NewEvents(a *command.App) *cobra.Command {
	var o eventsOptions
	cmd := &cobra.Command{
		Use: "events", Short: "Show the events of volumes and plugins",
		Long: `Show the events that the agent keeps, oldest first: by default those of the last seven days. A
repeated event is shown once, with a count. With -o json, each line is one event.`,
		Example: `  volctl events --since 1h --volume data
  volctl events --since yesterday
  volctl events --type step-failed --type expand-failed
  volctl events -f -o json`,
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := command.CheckCount(cmd, o.filter.N); err != nil {
				return err
			}
			if cmd.Flags().Changed("since") {
				since, err := humantime.ParseTime(o.since, a.Env.Now())
				if err != nil {
					return command.Usage("", "--since: %v", err)
				}
				o.filter.Since = since
			}

			return a.Do(cmd, o.run)
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVarP(&o.filter.Follow, "follow", "f", false, "keep printing new events until Ctrl-C")
	f.StringVar(&o.since, "since", "", "show only events since this `TIME`, as in 1h, yesterday, 14:00 or \"2026-11-28 14:00\"")
	f.StringVar(&o.filter.Volume, "volume", "", "show only events of volume `ID`")
	f.StringArrayVar(&o.filter.Types, "type", nil, "show only events of this `TYPE`; may be repeated")
	f.IntVarP(&o.filter.N, "lines", "n", 0, "show only the last `N` events (default all)")
	command.CompleteFlag(a, cmd, "volume", command.VolumeIDs)

	return cmd
}

func (o eventsOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	if o.filter.Volume != "" {
		id, err := eventVolume(ctx, client, o.filter.Volume)
		if err != nil {
			return command.Failed(err, "show events")
		}
		o.filter.Volume = id
	}

	location := out.Now().Location()
	rows := out.NewRows(nil, len(time.DateTime), typeWidth, subjectWidth)
	rows.Batch = !o.filter.Follow
	err := client.Events(ctx, o.filter, func(e api.Event) error { return out.Stream(e, rows, eventRow(&e, location)...) })
	if err := rows.Flush(); err != nil {
		return err
	}
	return command.Failed(command.StreamEnd(ctx, o.filter.Follow, err), "show events")
}

// eventVolume completes the prefix of a volume's id. If no volume matches, it returns id unchanged,
// because the events of a deleted volume still exist.
func eventVolume(ctx context.Context, client *apiclient.Client, id string) (string, error) {
	v, err := command.FindVolume(ctx, client, id)
	switch {
	case command.IsNotFound(err):
		return id, nil
	case err != nil:
		return "", err
	}
	return v.Spec.ID, nil
}

// typeWidth and subjectWidth are the initial widths of two columns. They are sufficient for all
// types of events and for most subjects. The command prints each event when it arrives, so it
// cannot calculate the widths in advance.
const (
	typeWidth    = 20
	subjectWidth = 24
)

// eventRow returns the cells of a table row for an event.
func eventRow(e *api.Event, location *time.Location) []string {
	subject := cmp.Or(output.Joined(" ", e.Volume, e.Alloc), e.Plugin)
	return []string{e.Time.In(location).Format(time.DateTime), e.Type, output.Dash(subject), e.Message}
}
