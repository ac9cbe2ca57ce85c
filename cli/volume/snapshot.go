package volume

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

// copyTimeout is the default timeout for operations that copy data.
const copyTimeout = 10 * time.Minute

// pluginGrace is how long the agent may wait for a plugin to start before the operation begins.
const pluginGrace = 30 * time.Second

func newSnapshot(a *command.App) *cobra.Command {
	return command.Group("snapshot", "Create, list and delete snapshots", "",
		newSnapshotCreate(a), newSnapshotList(a), newSnapshotDelete(a),
		command.Group("group", "Create, show and delete snapshots of several volumes, taken at the same moment", "",
			newGroupSnapshotCreate(a), newGroupSnapshotStatus(a), newGroupSnapshotDelete(a)),
	)
}

// takeOptions holds the options of the commands that create snapshots.
type takeOptions struct {
	volumes, params, secrets []string
	name                     string
	group, noWait            bool
	timeout                  time.Duration
}

func (o *takeOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	f.StringArrayVar(&o.params, "param", nil, "`KEY=VALUE` parameter for the plugin; may be repeated")
	f.StringArrayVar(&o.secrets, "secret", nil, "`KEY=file:PATH`, KEY=credential:NAME or KEY=env:NAME: a secret that overrides the volume's own; may be repeated")
	command.DurationVar(f, &o.timeout, "timeout", copyTimeout, "how long to wait until it is ready")
	f.BoolVar(&o.noWait, "no-wait", false, "call the plugin once, and do not wait until it is ready")
}

func newSnapshotCreate(a *command.App) *cobra.Command {
	var o takeOptions
	cmd := &cobra.Command{
		Use: "create ID [NAME]", Short: "Create a snapshot of a volume",
		Long: `Create a snapshot of a volume with its plugin, and wait until you can create a volume from it. The
plugin chooses the id of the snapshot, and -q prints only this id. With the same name again, the
command continues with the same snapshot, even if its result is unknown. Without a name, the
snapshot gets the volume's id with the time. The snapshot of a volume in use may lack data that is
not written yet. If that matters, first stop the program that writes, or freeze the file system.`,
		Example: `  volctl volume snapshot create data
  volctl volume snapshot create data before-upgrade --timeout 1h`,
		Args: command.Between(1, "ID", "NAME"), ValidArgsFunction: command.CompleteArg(a, command.VolumeIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.volumes = args[:1]
			if o.name = snapshotName(args[0], a.Env.Now()); len(args) > 1 {
				o.name = args[1]
			}

			if err := o.check(); err != nil {
				return err
			}

			return a.Do(cmd, o.create)
		},
	}

	o.flags(cmd)
	return cmd
}

func newGroupSnapshotCreate(a *command.App) *cobra.Command {
	o := takeOptions{group: true}
	cmd := &cobra.Command{
		Use: "create NAME ID...", Short: "Create snapshots of several volumes at the same moment",
		Long: `Create snapshots of several volumes of one plugin at the same moment, and wait until you can
create volumes from them. With the same name again, the command continues with the same group.`,
		Example: "  volctl volume snapshot group create nightly data log",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return command.Usage(cmd.CommandPath()+" --help", "volume snapshot group create needs NAME and at least one ID")
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return command.Offer(a, cmd, command.VolumeIDs)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.name, o.volumes = args[0], args[1:]
			if err := o.check(); err != nil {
				return err
			}
			return a.Do(cmd, o.createGroup)
		},
	}

	o.flags(cmd)
	return cmd
}

// snapshotName builds a name from the volume's id and the time. A storage system that accepts the
// id also accepts the added characters. If the name is too long, snapshotName shortens the id.
func snapshotName(id string, now time.Time) string {
	t := now.UTC()
	stamp := fmt.Sprintf("-%s-%03d", t.Format("20060102T150405Z"), t.Nanosecond()/int(time.Millisecond))
	for len(id)+len(stamp) > spec.MaxID {
		_, last := utf8.DecodeLastRuneInString(id)
		id = id[:len(id)-last]
	}
	return id + stamp
}

func (o *takeOptions) check() error {
	for _, id := range o.volumes {
		if err := command.CheckVolumeID(id); err != nil {
			return o.failed(err)
		}
	}

	if err := spec.CheckSnapshotName(o.name); err != nil {
		return o.failed(command.Usage("a name has 1 to 128 printable characters, without a slash", "%v", err))
	}

	return command.CheckTimeout(o.timeout)
}

func (o *takeOptions) failed(err error) error {
	if o.group {
		return command.Failed(err, "make group snapshot %q", o.name)
	}
	return command.Failed(err, "make a snapshot of volume %q", o.volumes[0])
}

// again returns the command with which the user can continue to wait for this snapshot.
func (o *takeOptions) again() string {
	if o.group {
		return suggest.Command("volctl volume snapshot group create %s %s", o.name, o.volumes)
	}
	return suggest.Command("volctl volume snapshot create %s %s", o.volumes[0], o.name)
}

// take asks the agent to create a snapshot or a group of snapshots, and shows the progress.
func take[A any](ctx context.Context, o takeOptions, client *apiclient.Client, out *output.Printer,
	call func(ctx context.Context, params map[string]string, secrets map[string]api.Secret, wait time.Duration) (*A, error)) (*A, error) {
	params, err := command.KeyValues("param", o.params)
	if err != nil {
		return nil, err
	}

	secrets, err := command.SecretRefs(o.secrets)
	if err != nil {
		return nil, err
	}

	asked, wait := ctx, o.timeout
	if o.noWait {
		wait = 0
	} else {
		var cancel context.CancelFunc
		asked, cancel = context.WithTimeout(ctx, wait+pluginGrace+command.AnswerGrace)
		defer cancel()
	}

	end := out.During(ctx, fmt.Sprintf("making snapshot %q", o.name), o.progress(client))
	made, err := call(asked, params, secrets, wait)
	end()

	switch {
	case err == nil:
		return made, nil
	case ctx.Err() != nil:
		err = command.Interrupted("it was interrupted; the plugin may continue", "to continue waiting: "+o.again())
	case command.Dropped(err):
		err = command.Hinted(err, "the plugin may continue; to continue waiting: "+o.again())
	default:
		err = command.Explain(ctx, client, err, o.volumes[0])
	}

	return nil, o.failed(err)
}

// progress returns the agent's last message about the snapshot.
func (o *takeOptions) progress(client *apiclient.Client) output.Status {
	return func(ctx context.Context) string {
		v, err := client.Volume(ctx, o.volumes[0])
		if err != nil {
			return ""
		}
		if words := command.PluginProgress(client, v.Spec.PluginID)(ctx); words != "" {
			return words
		}

		all, err := client.Snapshots(ctx, apiclient.SnapshotFilter{Volume: o.volumes[0], Pending: true})
		if err != nil {
			return ""
		}

		for _, s := range all.Snapshots {
			if !o.group && s.Name == o.name {
				return s.Message
			}
		}

		for _, g := range all.Groups {
			if o.group && g.Name == o.name {
				return g.Message
			}
		}

		return ""
	}
}

func (o takeOptions) create(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	made, err := take(ctx, o, client, out, func(ctx context.Context, params map[string]string, secrets map[string]api.Secret, wait time.Duration) (*api.Snapshot, error) {
		return client.CreateSnapshot(ctx, api.SnapshotRequest{Volume: o.volumes[0], Name: o.name, Parameters: params, Secrets: secrets}, wait)
	})

	if err != nil {
		return err
	}

	if made.State != api.SnapshotReady {
		out.Note("it is not ready yet; to wait for it: %s", o.again())
	}

	what := fmt.Sprintf("snapshot %q of volume %q", o.name, o.volumes[0])
	return printMade(out, made, what, made.ID, made.State, made.Size)
}

func (o takeOptions) createGroup(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	made, err := take(ctx, o, client, out, func(ctx context.Context, params map[string]string, secrets map[string]api.Secret, wait time.Duration) (*api.GroupSnapshot, error) {
		return client.CreateGroupSnapshot(ctx, api.GroupSnapshotRequest{Volumes: o.volumes, Name: o.name, Parameters: params, Secrets: secrets}, wait)
	})

	if err != nil {
		return err
	}

	if made.State != api.SnapshotReady {
		out.Note("it is not ready yet; to wait for it: %s", o.again())
	}

	if !out.Human() || out.Quiet {
		return printMade(out, made, "", made.ID, made.State, 0)
	}

	return showGroup(out, made)
}
