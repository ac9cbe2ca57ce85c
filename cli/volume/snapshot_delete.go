package volume

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

type snapshotDeleteOptions struct {
	plugin, id             string
	members, secrets       []string
	group                  bool
	ignoreNotFound, forget bool
	timeout                time.Duration
	ask                    command.Asker
}

func newSnapshotDelete(a *command.App) *cobra.Command {
	var (
		o   snapshotDeleteOptions
		yes bool
	)

	cmd := &cobra.Command{
		Use: "delete PLUGIN SNAPSHOT -y", Short: "Destroy a snapshot",
		Long: `Destroy a snapshot, which you name by its id at the plugin or by its name. On a terminal the
command asks for confirmation. Without a terminal it needs -y. With --forget, the agent does not
call the plugin. It forgets, by name or id, a snapshot that was begun and that it has not seen
finished.`,
		Example: "  volctl volume snapshot delete local before-upgrade -y",
		Args:    command.Exactly("PLUGIN", "SNAPSHOT"), ValidArgsFunction: completeSnapshots(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.plugin, o.id, o.ask = args[0], args[1], a.Asker(yes || o.forget)
			if err := o.check(yes); err != nil {
				return o.failed(err)
			}

			return a.Do(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
				if o.forget {
					return runSnapshotForget(ctx, o, client, out)
				}
				return runSnapshotDelete(ctx, o, client, out)
			})
		},
	}

	o.flags(cmd, &yes)
	cmd.Flags().BoolVar(&o.forget, "forget", false, "forget a snapshot that was begun, whether it exists or not")
	return cmd
}

func newGroupSnapshotDelete(a *command.App) *cobra.Command {
	var (
		o   = snapshotDeleteOptions{group: true}
		yes bool
	)

	cmd := &cobra.Command{
		Use: "delete PLUGIN GROUP [SNAPSHOT...] -y", Short: "Destroy a group of snapshots",
		Long: `Destroy a group with all its snapshots. Some plugins need the ids of these snapshots. If you do
not give them, the agent asks the plugin first. On a terminal the command asks for confirmation.
Without a terminal it needs -y.`,
		Example: "  volctl volume snapshot group delete local group-1 -y",
		Args:    pluginAndGroup, ValidArgsFunction: command.CompleteArg(a, command.PluginIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.plugin, o.id, o.members, o.ask = args[0], args[1], args[2:], a.Asker(yes)
			if err := o.check(yes); err != nil {
				return o.failed(err)
			}
			return a.Do(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
				return runSnapshotDelete(ctx, o, client, out)
			})
		},
	}

	o.flags(cmd, &yes)
	return cmd
}

func pluginAndGroup(cmd *cobra.Command, args []string) error {
	if len(args) < 2 {
		return command.Usage(cmd.CommandPath()+" --help", "%s needs PLUGIN and GROUP", strings.TrimPrefix(cmd.CommandPath(), "volctl "))
	}
	return nil
}

func (o *snapshotDeleteOptions) flags(cmd *cobra.Command, yes *bool) {
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVarP(yes, "yes", "y", false, "do not ask for confirmation")
	f.StringArrayVar(&o.secrets, "secret", nil, command.SecretUsage)
	command.DurationVar(f, &o.timeout, "timeout", command.ClaimTimeout, "how long to ask a busy plugin again")
	f.BoolVar(&o.ignoreNotFound, "ignore-not-found", false, "exit 0 if there is nothing to do")
}

func (o *snapshotDeleteOptions) noun() string {
	if o.group {
		return "group snapshot"
	}
	return "snapshot"
}

func (o *snapshotDeleteOptions) failed(err error) error {
	return command.Failed(err, "delete %s %q", o.noun(), o.id)
}

// again returns the same command with the flag -y.
func (o *snapshotDeleteOptions) again() string {
	if o.group {
		return suggest.Command("volctl volume snapshot group delete %s %s %s -y", o.plugin, o.id, o.members)
	}
	return suggest.Command("volctl volume snapshot delete %s %s %s -y", o.plugin, o.id, o.members)
}

func (o *snapshotDeleteOptions) check(yes bool) error {
	if err := command.CheckPluginID(o.plugin); err != nil {
		return err
	}
	if o.id == "" {
		return command.Usage(suggest.Command("volctl volume snapshot list --plugin %s", o.plugin), "the id is empty")
	}
	if o.ask == nil && !yes && !o.forget {
		return command.Usage(o.again(), "it destroys data, and asking for confirmation needs a terminal")
	}

	return command.CheckTimeout(o.timeout)
}

func runSnapshotDelete(ctx context.Context, o snapshotDeleteOptions, client *apiclient.Client, out *output.Printer) error {
	secrets, err := command.SecretRefs(o.secrets)
	if err != nil {
		return o.failed(err)
	}

	if o.ask != nil {
		if err := o.deletable(ctx, client, secrets); command.IsNotFound(err) && o.ignoreNotFound {
			return out.Print(api.Done{}, nil, output.NothingToDo)
		} else if err != nil {
			return o.failed(err)
		}

		question := fmt.Sprintf("Destroy %s %q of plugin %q?", o.noun(), o.id, o.plugin)
		if yes, err := o.ask(ctx, question); err != nil || !yes {
			return o.failed(command.NotConfirmed(err))
		}
	}

	call := client.DeleteSnapshot
	if o.group {
		call = client.DeleteGroupSnapshot
	}

	asked, cancel := context.WithTimeout(ctx, o.timeout+pluginGrace+command.AnswerGrace)
	defer cancel()

	end := out.During(ctx, fmt.Sprintf("deleting %s %q", o.noun(), o.id), command.PluginProgress(client, o.plugin))
	err = call(asked, o.plugin, o.id, api.SnapshotRef{Snapshots: o.members, Secrets: secrets}, o.timeout)
	end()

	switch {
	case ctx.Err() != nil && err != nil:
		return o.failed(command.Interrupted("it was interrupted; it is unknown whether it was deleted", o.again()))
	case command.IsNotFound(err) && o.ignoreNotFound:
		return out.Print(api.Done{}, nil, output.NothingToDo)
	case err != nil:
		return o.failed(command.ExplainPlugin(ctx, client, err, o.plugin))
	}

	return out.Print(api.Done{}, []string{o.id}, func(w *bytes.Buffer) error {
		fmt.Fprintf(w, "%s\n", output.OneLine(fmt.Sprintf("deleted %s %q", o.noun(), o.id)))
		return nil
	})
}

// deletable returns an error if the plugin is unknown or does not list the snapshot. The user is
// then not asked for confirmation. Plugins cannot list groups of snapshots, and some plugins cannot
// list snapshots either. In these cases, deletable returns nil and the agent decides.
func (o *snapshotDeleteOptions) deletable(ctx context.Context, client *apiclient.Client, secrets map[string]api.Secret) error {
	if _, err := client.Plugin(ctx, o.plugin); err != nil || o.group {
		return err
	}

	all, err := client.Snapshots(ctx, apiclient.SnapshotFilter{Plugin: o.plugin, Secrets: secrets})
	if err != nil {
		return err
	}

	is := func(s api.Snapshot) bool { return s.ID == o.id || s.Name == o.id }
	if len(all.Notes) > 0 || slices.ContainsFunc(all.Snapshots, is) {
		return nil // a note in the answer means that the list is incomplete
	}

	return &api.Error{
		Code: api.CodeNotFound, Message: fmt.Sprintf("plugin %q has no snapshot %q", o.plugin, o.id),
		Hint: suggest.Command("volctl volume snapshot list --plugin %s -o wide", o.plugin),
	}
}

func runSnapshotForget(ctx context.Context, o snapshotDeleteOptions, client *apiclient.Client, out *output.Printer) error {
	r, err := client.ForgetSnapshot(ctx, o.plugin, o.id)
	if command.IsNotFound(err) && o.ignoreNotFound {
		return out.Print(api.Done{}, nil, output.NothingToDo)
	}
	if err != nil {
		return command.Failed(err, "forget snapshot %q", o.id)
	}

	return out.Print(r, []string{o.id}, func(w *bytes.Buffer) error {
		fmt.Fprintf(w, "%s\n", output.OneLine(fmt.Sprintf("forgot snapshot %q", o.id)))
		for _, l := range r.Left {
			fmt.Fprintf(w, "left: %s\n", output.OneLine(l))
		}
		return nil
	})
}

type groupStatusOptions struct {
	plugin, id       string
	members, secrets []string
}

func newGroupSnapshotStatus(a *command.App) *cobra.Command {
	var o groupStatusOptions
	cmd := &cobra.Command{
		Use: "status PLUGIN GROUP [SNAPSHOT...]", Short: "Show a group of snapshots",
		Long: `Ask the plugin for a group and its snapshots. Some plugins need the ids of these snapshots. If you
do not give them, the agent looks for them among all snapshots that the plugin lists.`,
		Example: "  volctl volume snapshot group status local group-1",
		Args:    pluginAndGroup, ValidArgsFunction: command.CompleteArg(a, command.PluginIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.plugin, o.id, o.members = args[0], args[1], args[2:]
			if err := command.CheckPluginID(o.plugin); err != nil {
				return err
			}
			return a.Read(cmd, o.run)
		},
	}

	cmd.Flags().StringArrayVar(&o.secrets, "secret", nil, command.SecretUsage)
	return cmd
}

func (o groupStatusOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	secrets, err := command.SecretRefs(o.secrets)
	if err != nil {
		return err
	}

	g, err := client.GroupSnapshot(ctx, o.plugin, o.id, api.SnapshotRef{Snapshots: o.members, Secrets: secrets})
	if err != nil {
		return command.Failed(command.ExplainPlugin(ctx, client, err, o.plugin), "show group snapshot %q", o.id)
	}

	return showGroup(out, g)
}

// completeSnapshots completes a plugin id, and then a snapshot of this plugin.
func completeSnapshots(a *command.App) command.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return command.Offer(a, cmd, command.PluginIDs)
		case 1:
			return command.Offer(a, cmd, func(ctx context.Context, client *apiclient.Client) ([]string, error) {
				all, err := client.Snapshots(ctx, apiclient.SnapshotFilter{Plugin: args[0]})
				if err != nil {
					return nil, err
				}

				var ids []string
				for _, s := range all.Snapshots {
					ids = append(ids, s.ID)
				}

				return ids, nil
			})
		}

		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}
