package volume

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/container"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/dockerimport"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/treecopy"
)

// importAlloc is the alloc of the claim during an import.
const importAlloc = "import-docker"

// smallestImport is the smallest size of a volume that an import creates without --size, in bytes. Some
// filesystems cannot be smaller.
const smallestImport = 64 << 20

type importOptions struct {
	name, into, id string
	given          func(flag string) bool // whether the user has given a flag
	create         createOptions
}

// imported is the result of an import, for programs.
type imported struct {
	DockerVolume string   `json:"docker_volume"`
	Volume       string   `json:"volume"`
	Files        int64    `json:"files"`
	Bytes        int64    `json:"bytes"`
	Created      bool     `json:"created"`   // the command has created the volume
	Continued    bool     `json:"continued"` // an earlier import was not finished
	Stopped      []string `json:"stopped_containers,omitempty"`
}

func newImportDocker(a *command.App) *cobra.Command {
	var o importOptions
	cmd := &cobra.Command{
		Use: "import-docker NAME --into ID | import-docker NAME --plugin P", Short: "Copy a docker volume to a volume",
		Long: `Copy the data of a docker volume to an existing volume (--into), or to a new one that flags describe,
and verify the copy. Run the command as root. NAME is a volume of docker's local driver, or of another
driver whose volume is mounted, as that of rclone.

The command is refused while a container could write to the docker volume. Containers that mount it
read-only may run. The copy keeps owners, modes, times, links, extended attributes, access control
lists, holes and special files. A second pass compares all of that, and the content of all files.

The target must be empty and unclaimed. If an import did not finish, the same command with --into
continues it. The directory .volagent-import in the root of the volume exists until the import is
complete. The docker volume stays as it is.

Without --id, the new volume has the name of the docker volume as its id. Without --size, it has the
size of the data and a quarter more, and at least 64MiB.`,
		Example: `  volctl volume import-docker app_data --into data
  volctl volume import-docker app_data --id data --plugin local --size 10GiB`,
		Args: command.Exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.name = args[0]
			if err := o.check(cmd); err != nil {
				return err
			}
			return a.Do(cmd, o.run)
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.into, "into", "", "copy to the existing volume `ID`")
	f.StringVar(&o.id, "id", "", "`ID` of the new volume (default NAME)")
	o.create.describing(a, cmd)
	command.CompleteFlag(a, cmd, "into", command.VolumeIDs)

	return cmd
}

func (o *importOptions) check(cmd *cobra.Command) error {
	for _, name := range append([]string{"id"}, withoutFile...) {
		if o.into != "" && cmd.Flags().Changed(name) {
			return command.Usage("", "--into and --%s exclude each other: the flag describes a new volume", name)
		}
	}
	if o.create.attachmentMode != spec.DefaultAttachmentMode {
		return command.Usage("", "an import needs --attachment-mode %s", spec.DefaultAttachmentMode)
	}
	if o.into != "" {
		return command.CheckVolumeID(o.into)
	}
	if o.create.plugin == "" && o.create.class == "" {
		return command.Usage("volctl volume list, volctl plugin list", "--into ID is needed for an existing volume, or --plugin P or --class C for a new one")
	}

	o.id, o.given = cmp.Or(o.id, o.name), cmd.Flags().Changed
	_, err := o.create.describe(o.id, o.given)
	return err
}

// target returns the id of the volume that gets the data.
func (o *importOptions) target() string { return cmp.Or(o.into, o.id) }

func (o importOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	source, err := dockerimport.Find(ctx, container.New("docker"), o.name)
	if err != nil {
		return o.failed(err)
	}
	size, err := source.Measure(ctx)
	if err != nil {
		return o.failed(fmt.Errorf("cannot measure it: %w", err))
	}

	if o.into != "" {
		err = o.admit(ctx, client, size)
	} else {
		err = o.make(ctx, client, out, size)
	}
	if err != nil {
		return o.failed(err)
	}

	result, err := o.copy(ctx, client, out, source)
	if err != nil {
		return o.failed(o.unfinished(ctx, err))
	}

	done := imported{
		DockerVolume: o.name, Volume: o.target(), Files: result.Files, Bytes: result.Bytes,
		Created: o.into == "", Continued: result.Continued, Stopped: source.Stopped,
	}
	return out.Print(done, []string{done.Volume}, func(w *bytes.Buffer) error {
		w.WriteString(done.text(source.ComposeName()))
		return nil
	})
}

func (o *importOptions) failed(err error) error {
	return command.Failed(err, "import docker volume %q", o.name)
}

// unfinished adds to an error after the begin of the import how to continue.
func (o *importOptions) unfinished(ctx context.Context, err error) error {
	again := suggest.Command("volctl volume import-docker %s --into=%s", o.name, o.target())
	if ctx.Err() != nil {
		return command.Interrupted("it was interrupted; the docker volume is unchanged, and volume "+output.QuotedList([]string{o.target()})+" may contain a part of it", again)
	}

	var e *api.Error
	switch {
	case errors.As(err, &e) && e.Hint != "":
		return command.Hinted(err, e.Hint+"; to continue: "+again)
	case errors.As(err, &e):
		return command.Hinted(err, again)
	}
	return &api.Error{Code: api.CodeFailed, Message: err.Error(), Hint: again}
}

// admit checks an existing volume before the import changes anything.
func (o *importOptions) admit(ctx context.Context, client *apiclient.Client, size treecopy.Size) error {
	v, _, err := client.AnyVolume(ctx, o.into)
	if err != nil {
		return command.Explain(ctx, client, err, o.into)
	}

	if len(v.Claims) > 0 {
		var held []string
		for _, c := range v.Claims {
			held = append(held, fmt.Sprintf("%q (%s)", c.Alloc, c.State))
		}
		return &api.Error{
			Code: api.CodeRefused, Message: fmt.Sprintf("volume %q is claimed by %s", o.into, strings.Join(held, ", ")),
			Hint: suggest.Command("volctl volume status %s", o.into),
		}
	}
	if v.Capacity > 0 && v.Capacity < size.Bytes {
		return tooSmall(o.into, v.Capacity, size)
	}

	return nil
}

func tooSmall(id string, capacity int64, size treecopy.Size) error {
	return &api.Error{
		Code: api.CodeRefused, Message: fmt.Sprintf("volume %q has %s, and the data needs %s", id, output.Size(capacity), output.Size(size.Bytes)),
		Hint: suggest.Command("volctl volume expand %s %d", id, size.Bytes/4*5),
	}
}

// make creates the target. It refuses a volume that exists, because a description that fits is no proof
// that the volume was made for this import.
func (o *importOptions) make(ctx context.Context, client *apiclient.Client, out *output.Printer, size treecopy.Size) error {
	specs, err := o.create.describe(o.id, o.given)
	if err != nil {
		return err
	}
	s := specs[0]
	if s.CapacityMin == 0 {
		s.CapacityMin = max(smallestImport, (size.Bytes/4*5+1<<20-1)>>20<<20)
	}
	if s.CapacityMin < size.Bytes {
		return command.Usage("", "--size is %s, and the data needs %s", output.Size(s.CapacityMin), output.Size(size.Bytes))
	}

	_, _, err = client.AnyVolume(ctx, o.id)
	if err == nil {
		return &api.Error{
			Code: api.CodeRefused, Message: fmt.Sprintf("volume %q exists already", o.id),
			Hint: "another id: --id ID; into this volume: " + suggest.Command("volctl volume import-docker %s --into=%s", o.name, o.id),
		}
	}
	if !command.IsNotFound(err) {
		return err
	}

	end := out.During(ctx, fmt.Sprintf("creating volume %q", s.ID), command.VolumeProgress(client, s.ID, s.PluginID))
	_, err = client.CreateVolumeWithin(ctx, s, copyTimeout)
	end()
	if err != nil {
		return fmt.Errorf("cannot create volume %q: %w", s.ID, command.ExplainPlugin(ctx, client, err, s.PluginID))
	}

	return nil
}

// copy claims the target, copies the data, and detaches the claim again. The owner of the claim is this
// process, so the agent detaches it if the process dies.
func (o *importOptions) copy(ctx context.Context, client *apiclient.Client, out *output.Printer, source *dockerimport.Source) (r dockerimport.Result, err error) {
	id := o.target()
	claiming := command.Claiming{
		Volume: id, Alloc: importAlloc, Timeout: command.ClaimTimeout,
		Request: api.ClaimRequest{
			AttachmentMode: spec.DefaultAttachmentMode, Owner: api.Owner{Kind: api.OwnerPID, PID: os.Getpid()},
			Note: output.OneLine("import of a docker volume"),
		},
	}
	claim, err := claiming.Make(ctx, client, out)
	if err != nil {
		return r, fmt.Errorf("cannot claim volume %q: %w", id, err)
	}

	var p treecopy.Progress
	end := out.During(ctx, fmt.Sprintf("copying docker volume %q to volume %q", o.name, id), func(context.Context) string {
		return output.Percent(p.Done.Load(), p.Total.Load())
	})
	r, err = source.CopyTo(ctx, claim.Path, &p)
	end()

	// The clean-up must happen after an interrupt as well.
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), command.ClaimTimeout+command.AnswerGrace)
	defer cancel()
	_, detachErr := client.Detach(clean, id, importAlloc, apiclient.DetachOptions{Wait: command.ClaimTimeout, Force: true})
	if detachErr != nil && !command.IsNotFound(detachErr) {
		detachErr = fmt.Errorf("cannot detach volume %q: %w", id, detachErr)
		out.Note("%v; the agent detaches it when volctl has ended", detachErr)
		if err == nil && command.CodeOf(detachErr) != api.CodeTimeout {
			err = detachErr
		}
	}

	return r, err
}

// text describes the result for a person, with the next steps.
func (i *imported) text(composeName string) string {
	var b strings.Builder
	verb := "imported"
	if i.Continued {
		verb = "continued the import of"
	}
	fmt.Fprintf(&b, "%s docker volume %q into volume %q: %s, %s; both are equal\n", verb, i.DockerVolume, i.Volume, output.Count(int(i.Files), "file"), output.Size(i.Bytes))
	if len(i.Stopped) > 0 {
		fmt.Fprintf(&b, "stopped containers that still use the docker volume: %s\n", output.QuotedList(i.Stopped))
	}

	// A name of docker stands for one volume. So the new volume cannot have the name of the old one
	// while docker has the old one.
	b.WriteString("next: in the compose file, use the new volume, and make the containers again (docker compose up -d):\n  volumes:\n")
	if i.Volume == i.DockerVolume {
		fmt.Fprintf(&b, "    %s: {driver: csi, name: %q, driver_opts: {volume: %q}}\n", composeName, i.Volume+"-csi", i.Volume)
	} else {
		fmt.Fprintf(&b, "    %s: {driver: csi, name: %q}\n", composeName, i.Volume)
	}
	fmt.Fprintf(&b, "docker still has the old volume; remove it when the new one works: %s\n", suggest.Command("docker volume rm %s", i.DockerVolume))

	return output.Printable(b.String())
}
