package volume

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

type claimOptions struct {
	command.Claiming
	own      command.Ownership
	perAlloc uint
	owner    string
}

func newClaim(a *command.App) *cobra.Command {
	var o claimOptions
	cmd := &cobra.Command{
		Use: "claim ID", Short: "Claim a volume, wait until it is mounted, and print its path",
		Long: `Claim a volume for an alloc, wait until it is mounted, and print its path and nothing else.

The alloc is the user of the volume. It is the calling systemd service, or else "manual", unless
--alloc names another. The claim ends with its owner. An owner is a process, or the current run of
a systemd unit. The default owner is the calling service. A claim without an owner lives until you
detach it.

The same claim again gives the same answer. With other options it is refused. If the volume is not
mounted before --timeout or Ctrl-C, the agent detaches the new claim. With --no-wait, the claim
stays and the agent continues. The command then prints the path only if the volume is mounted
already.

The access modes are single-node-reader-only, single-node-writer, single-node-single-writer,
single-node-multi-writer, multi-node-reader-only, multi-node-single-writer and
multi-node-multi-writer.

If the directory of --at is empty, the agent makes it refuse writes while nothing is mounted there
(the immutable flag). This prevents writes to the disk underneath. The directory is writable again
after you deregister the volume. With --at-writable, the agent leaves the directory as it is.

The agent applies --uid, --gid and --mode to the root of the volume before the command prints the
path. A plugin with VOLUME_MOUNT_GROUP applies the group to all files itself. The group is then
the group of all claims. With --recursive, the agent applies them to everything in the volume,
unless its root has them already.

--note attaches a text to the claim, which "volctl volume status" shows. It has at most 200
printable characters. A claim that exists keeps its note: the same claim again is refused with
another note, and accepted without one.`,
		Example: `  cd "$(volctl volume claim data)"
  volctl volume claim data --alloc backup --read-only --at /srv/data
  volctl volume claim data --owner pid:$$
  volctl volume claim data --uid postgres --gid postgres --mode 0700`,
		Args: command.Exactly("ID"), ValidArgsFunction: command.CompleteArg(a, command.VolumeIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.read(a, cmd, args[0]); err != nil {
				return err
			}
			return a.Do(cmd, o.run)
		},
	}

	o.addFlags(cmd)
	return cmd
}

func (o *claimOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.Alloc, "alloc", "", "`ALLOC` that claims the volume (default the calling service, else manual)")
	f.BoolVar(&o.Request.ReadOnly, "read-only", false, "claim the volume for reading only")
	f.StringVar(&o.Request.AccessMode, "access-mode", "", "access `MODE` (default the one in force, else the first that fits)")
	f.StringVar(&o.Request.AttachmentMode, "attachment-mode", "", "attachment `MODE`: file-system or block-device")
	f.UintVar(&o.perAlloc, "per-alloc", 0, "claim ID[N], the volume of alloc number `N`")
	f.StringArrayVar(&o.Request.MountFlags, "mount-flag", nil, "mount `OPTION`; may be repeated")
	f.StringVar(&o.Request.At, "at", "", "also bind-mount the volume at `DIR`, an absolute path, and print that path")
	f.BoolVar(&o.Request.AtWritable, "at-writable", false, "leave the directory of --at writable while nothing is mounted there")
	o.own.Add(cmd)
	f.StringVar(&o.owner, "owner", "", "`OWNER` that keeps the claim alive: pid:N, unit:NAME or none (default the calling service, else none)")
	f.StringVar(&o.Request.Note, "note", "", "`TEXT` about the claim, of at most 200 characters")
	command.DurationVar(f, &o.Timeout, "timeout", command.ClaimTimeout, "how long to wait for the mount")
	f.BoolVar(&o.NoWait, "no-wait", false, "do not wait; the claim stays")
	command.CompleteChoice(cmd, "owner", []string{"pid:", "unit:", api.OwnerNone})
	command.CompleteChoice(cmd, "access-mode", spec.AccessModes())
	command.CompleteChoice(cmd, "attachment-mode", spec.AttachmentModes())
}

// read reads the flags. It derives a missing alloc or owner from the calling service.
func (o *claimOptions) read(a *command.App, cmd *cobra.Command, id string) (err error) {
	o.Volume = id
	if cmd.Flags().Changed("per-alloc") {
		o.Volume = fmt.Sprintf("%s[%d]", id, o.perAlloc)
	}

	if !cmd.Flags().Changed("alloc") {
		o.Alloc = defaultAlloc(a)
	}

	if o.Request.Owner = defaultOwner(a); cmd.Flags().Changed("owner") {
		if o.Request.Owner, err = parseOwner(o.owner); err != nil {
			return err
		}
	}

	if o.Request.Ownership, err = o.own.Read(); err != nil {
		return err
	}

	return o.check()
}

// check returns an error for options that no agent accepts.
func (o *claimOptions) check() error {
	if err := command.CheckVolumeID(o.Volume); err != nil {
		return command.Failed(err, "claim volume %q", o.Volume)
	}
	if err := command.CheckAlloc(o.Alloc); err != nil {
		return command.Failed(err, "claim volume %q", o.Volume)
	}
	if err := api.CheckNote(o.Request.Note); err != nil {
		return command.Failed(err, "claim volume %q", o.Volume)
	}
	if err := command.CheckTimeout(o.Timeout); err != nil {
		return err
	}

	if o.Request.AccessMode != "" {
		if err := command.OneOf("access-mode", o.Request.AccessMode, spec.AccessModes()); err != nil {
			return err
		}
	}

	if o.Request.AttachmentMode != "" {
		if err := command.OneOf("attachment-mode", o.Request.AttachmentMode, spec.AttachmentModes()); err != nil {
			return err
		}
	}

	if o.Request.At != "" && !filepath.IsAbs(o.Request.At) {
		return command.Usage("--at "+suggest.Quote("/path/to/"+o.Request.At), "--at needs an absolute path, not %q", o.Request.At)
	}

	return nil
}

func (o claimOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	claim, err := o.Make(ctx, client, out)
	if err != nil {
		return command.Failed(err, "claim volume %q for alloc %q", o.Volume, o.Alloc)
	}
	if claim.State != api.ClaimMounted && out.Human() {
		out.Note("the claim is %s; to wait for it: %s", claim.State, suggest.Command("volctl wait --volume %s --for mounted", o.Volume))
		return nil
	}

	return out.Print(claim, []string{claim.Path}, func(w *bytes.Buffer) error {
		w.WriteString(claim.Path + "\n")
		return nil
	})
}
