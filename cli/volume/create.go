package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/bytesize"
	"github.com/volagent/volagent/volmgr/suggest"
)

type createOptions struct {
	plugin, class, size, accessMode, attachmentMode, fsType string
	params, mutable, mountFlags, secrets                    []string
	snapshot, clone                                         string
	timeout                                                 time.Duration
	specs                                                   []api.VolumeSpec
}

// withoutFile lists the flags that describe a volume. They must not be combined with a volume file.
var withoutFile = []string{"plugin", "class", "size", "param", "mutable-param", "access-mode", "attachment-mode", "fs-type", "mount-flag", "secret", "snapshot", "clone"}

func newCreate(a *command.App) *cobra.Command {
	var o createOptions
	cmd := &cobra.Command{
		Use: "create FILE|- | create ID --plugin P | create ID --class C", Short: "Create volumes with a plugin",
		Long: `Create the volumes of a file (- is stdin), or one volume that flags describe. The plugin creates
several volumes one after the other, and continues after a failure. The command changes no
existing volume. If an existing volume matches the description, it stays as it is, with exit code
0. If it differs, it is refused with exit code 4, and the command shows each difference.

With --class, or the key class in the file, a class of this host supplies the plugin and every
field that the request leaves out. The class also limits the size. volctl class list shows the classes. The
file may also contain PersistentVolumeClaims of Kubernetes; storageClassName is then the class.

With --snapshot or --clone, or the same keys in the file, the plugin fills the volume from a
snapshot, or from another volume, of the same plugin. If the plugin is still busy with it, the
agent asks again until --timeout. To continue after that, run the same command again.`,
		Example: `  volctl volume create data.yaml
  volctl volume create data --plugin local --size 10GiB --param type=image
  volctl volume create data --class fast --size 20GiB
  volctl volume create copy --plugin local --clone data`,
		Args: command.Exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			described := ""
			for _, name := range withoutFile {
				if cmd.Flags().Changed(name) {
					described = name
				}
			}

			if err := command.CheckTimeout(o.timeout); err != nil {
				return err
			}

			return a.Do(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) (err error) {
				if described != "" {
					o.specs, err = o.describe(args[0], cmd.Flags().Changed)
				} else {
					o.specs, err = a.ReadSpecs(ctx, args[0])
					err = meantID(args[0], err)
				}

				if err != nil {
					return err
				}

				return runCreate(ctx, o, client, out)
			})
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	o.describing(a, cmd)
	f.StringVar(&o.snapshot, "snapshot", "", "fill the volume from this `SNAPSHOT` of the plugin, by its name or id")
	f.StringVar(&o.clone, "clone", "", "fill the volume from this `VOLUME` of the plugin, by its id here or its external id")
	command.DurationVar(f, &o.timeout, "timeout", copyTimeout, "how long to ask a busy plugin again, for each volume")
	command.CompleteFlag(a, cmd, "clone", command.VolumeIDs)
	command.NomadFlags(f, "detach", "verbose", "namespace", "policy-override")

	return cmd
}

// describing adds the flags that describe a new volume without a source.
func (o *createOptions) describing(a *command.App, cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.plugin, "plugin", "", "`PLUGIN` that creates the volume")
	f.StringVar(&o.class, "class", "", "`CLASS` that describes the volume, in place of --plugin")
	f.StringVar(&o.size, "size", "", "minimum `SIZE` of the volume, as in 10GiB")
	f.StringArrayVar(&o.params, "param", nil, "`KEY=VALUE` parameter for the plugin; may be repeated")
	f.StringArrayVar(&o.mutable, "mutable-param", nil, "`KEY=VALUE` parameter that volume modify can change; may be repeated")
	f.StringVar(&o.accessMode, "access-mode", spec.DefaultAccessMode, "access `MODE` that claims may use")
	f.StringVar(&o.attachmentMode, "attachment-mode", spec.DefaultAttachmentMode, "attachment `MODE`: file-system or block-device")
	f.StringVar(&o.fsType, "fs-type", "", "file system `TYPE` of the volume")
	f.StringArrayVar(&o.mountFlags, "mount-flag", nil, "mount `OPTION`; may be repeated")
	f.StringArrayVar(&o.secrets, "secret", nil, command.SecretUsage)
	command.CompleteFlag(a, cmd, "plugin", command.PluginIDs)
	command.CompleteFlag(a, cmd, "class", command.ClassIDs)
	command.CompleteChoice(cmd, "access-mode", spec.AccessModes())
	command.CompleteChoice(cmd, "attachment-mode", spec.AttachmentModes())
}

// meantID returns err with a better hint if the argument is the id of a volume instead of a file.
func meantID(file string, err error) error {
	_, statErr := os.Stat(file)
	if err == nil || file == "-" || !errors.Is(statErr, fs.ErrNotExist) || spec.CheckVolumeID(file) != nil {
		return err
	}

	var e *api.Error
	if !errors.As(err, &e) {
		return err
	}

	return command.Failed(command.Hinted(e, "without a file: "+suggest.Command("volctl volume create %s --plugin local", file)), "read %q", file)
}

// describe builds the spec of a volume from the flags. The function given reports whether the user
// has given a flag.
func (o *createOptions) describe(id string, given func(flag string) bool) ([]api.VolumeSpec, error) {
	s := api.VolumeSpec{ID: id, PluginID: o.plugin, Class: o.class, SnapshotID: o.snapshot, CloneID: o.clone}
	if err := command.CheckVolumeID(id); err != nil {
		return nil, err
	}
	if err := o.checkMaker(); err != nil {
		return nil, err
	}
	if o.snapshot != "" && o.clone != "" {
		return nil, command.Usage("", "--snapshot and --clone exclude each other: a volume is filled from one source")
	}

	if o.size != "" {
		bytes, err := bytesize.Parse(o.size)
		if err != nil {
			return nil, command.Usage("", "--size: %v", err)
		}
		s.CapacityMin = bytes
	}

	if err := errors.Join(command.OneOf("access-mode", o.accessMode, spec.AccessModes()), command.OneOf("attachment-mode", o.attachmentMode, spec.AttachmentModes())); err != nil {
		return nil, err
	}

	s.Capabilities = o.capabilities(given)
	if o.fsType != "" || len(o.mountFlags) > 0 {
		s.MountOptions = &api.MountOptions{FSType: o.fsType, MountFlags: o.mountFlags}
	}

	var err error
	if s.Parameters, err = command.KeyValues("param", o.params); err != nil {
		return nil, err
	}
	if s.Mutable, err = command.KeyValues("mutable-param", o.mutable); err != nil {
		return nil, err
	}
	if s.Secrets, err = command.SecretRefs(o.secrets); err != nil {
		return nil, err
	}

	return []api.VolumeSpec{s}, nil
}

// checkMaker checks the flag that names the plugin, or a class with a plugin.
func (o *createOptions) checkMaker() error {
	switch {
	case o.class != "" && o.plugin != "":
		return command.Usage("", "--class and --plugin exclude each other: the class names the plugin")
	case o.class != "":
		return command.CheckClassID(o.class)
	case o.plugin == "":
		return command.Usage("volctl plugin list", "--plugin or --class is needed to create a volume without a file")
	default:
		return command.CheckPluginID(o.plugin)
	}
}

// capabilities returns the only capability of the volume. With a class, it contains only the modes
// that the user has given, because the class decides about the others.
func (o *createOptions) capabilities(given func(flag string) bool) []api.Capability {
	c := api.Capability{AccessMode: o.accessMode, AttachmentMode: o.attachmentMode}
	if o.class == "" {
		return []api.Capability{c}
	}

	if !given("access-mode") {
		c.AccessMode = ""
	}
	if !given("attachment-mode") {
		c.AttachmentMode = ""
	}
	if c == (api.Capability{}) {
		return nil
	}
	return []api.Capability{c}
}

func runCreate(ctx context.Context, o createOptions, client *apiclient.Client, out *output.Printer) error {
	state := func(s api.VolumeSpec) output.Status { return command.VolumeProgress(client, s.ID, s.PluginID) }
	return apply(ctx, "create", o.specs, client, out, state, func(s api.VolumeSpec) (*api.VolumeResult, error) {
		return client.CreateVolumeWithin(ctx, s, o.timeout)
	})
}

// apply sends the specs to the agent one after another and reports each result. While the agent
// works on a spec, apply shows the progress that the function state returns.
func apply(ctx context.Context, verb string, specs []api.VolumeSpec, client *apiclient.Client, out *output.Printer,
	state func(api.VolumeSpec) output.Status, one func(api.VolumeSpec) (*api.VolumeResult, error)) error {
	var errs []error
	results := []*api.VolumeResult{}
	for _, s := range specs {
		end := out.During(ctx, fmt.Sprintf("%sing volume %q", strings.TrimSuffix(verb, "e"), s.ID), state(s))
		r, err := one(s)
		end()

		if ctx.Err() != nil {
			err = command.Interrupted("it was interrupted; a step that the agent has begun may continue", suggest.Command("volctl volume status %s", s.ID))
			errs = append(errs, command.Failed(err, "%s volume %q", verb, s.ID))
			break
		}

		if err != nil {
			errs = append(errs, command.Failed(explain(ctx, client, err, s), "%s volume %q", verb, s.ID))
			continue
		}

		results = append(results, r)
		if err := sayResult(out, r); err != nil {
			return err
		}
	}

	if !out.Human() || out.Quiet {
		ids := make([]string, len(results))
		for i, r := range results {
			ids[i] = r.Volume.Spec.ID
		}
		if err := out.Print(results, ids, nil); err != nil {
			return err
		}
	}

	return command.Join(errs)
}

// asked returns a note with the requested size of a new volume if the plugin made another size.
func asked(r *api.VolumeResult) string {
	least := r.Volume.Spec.CapacityMin
	if r.Outcome != api.OutcomeCreated || least == 0 || least == r.Volume.Capacity {
		return ""
	}
	return fmt.Sprintf(", asked for %d bytes", least)
}

// explain adds similar ids to the not-found error of a request about a volume.
func explain(ctx context.Context, client *apiclient.Client, err error, s api.VolumeSpec) error {
	if s.Class != "" {
		return command.ExplainClass(ctx, client, err, s.Class)
	}
	return command.ExplainPlugin(ctx, client, err, s.PluginID)
}

// sayResult prints the result for a volume as a sentence.
func sayResult(out *output.Printer, r *api.VolumeResult) error {
	id := r.Volume.Spec.ID
	switch {
	case r.Outcome == api.OutcomeUnchanged:
		return out.Say("volume %q is unchanged", id)
	case len(r.Changes) > 0:
		return out.Say("%s volume %q: %s", r.Outcome, id, strings.Join(r.Changes, "; "))
	case r.Volume.Capacity > 0:
		return out.Say("%s volume %q (%s, %d bytes%s%s)", r.Outcome, id, output.Size(r.Volume.Capacity), r.Volume.Capacity, asked(r), unenforced(&r.Volume))
	case r.Outcome == api.OutcomeCreated && r.Volume.Spec.CapacityMin > 0:
		return out.Say("%s volume %q (asked for %d bytes; the plugin reports no size)", r.Outcome, id, r.Volume.Spec.CapacityMin)
	default:
		return out.Say("%s volume %q", r.Outcome, id)
	}
}
