package cli

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/volmgr/suggest"
)

type volumeClaimOptions struct {
	claiming
	own      ownershipFlags
	perAlloc uint
	owner    string
}

func newVolumeClaim(a *app) *cobra.Command {
	var o volumeClaimOptions
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
		Args: exactly("ID"), ValidArgsFunction: completeArg(a, volumeIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.read(a, cmd, args[0]); err != nil {
				return err
			}
			return a.do(cmd, func(ctx context.Context, client *apiclient.Client, out *output) error {
				return runVolumeClaim(ctx, o, client, out)
			})
		},
	}

	o.addFlags(cmd)
	return cmd
}

func (o *volumeClaimOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.alloc, "alloc", "", "`ALLOC` that claims the volume (default the calling service, else manual)")
	f.BoolVar(&o.req.ReadOnly, "read-only", false, "claim the volume for reading only")
	f.StringVar(&o.req.AccessMode, "access-mode", "", "access `MODE` (default the one in force, else the first that fits)")
	f.StringVar(&o.req.AttachmentMode, "attachment-mode", "", "attachment `MODE`: file-system or block-device")
	f.UintVar(&o.perAlloc, "per-alloc", 0, "claim ID[N], the volume of alloc number `N`")
	f.StringArrayVar(&o.req.MountFlags, "mount-flag", nil, "mount `OPTION`; may be repeated")
	f.StringVar(&o.req.At, "at", "", "also bind-mount the volume at `DIR`, an absolute path, and print that path")
	f.BoolVar(&o.req.AtWritable, "at-writable", false, "leave the directory of --at writable while nothing is mounted there")
	o.own.add(cmd)
	f.StringVar(&o.owner, "owner", "", "`OWNER` that keeps the claim alive: pid:N, unit:NAME or none (default the calling service, else none)")
	f.StringVar(&o.req.Note, "note", "", "`TEXT` about the claim, of at most 200 characters")
	f.DurationVar(&o.timeout, "timeout", claimTimeout, "how long to wait for the mount")
	f.BoolVar(&o.noWait, "no-wait", false, "do not wait; the claim stays")
	completeChoice(cmd, "owner", []string{"pid:", "unit:", api.OwnerNone})
	completeChoice(cmd, "access-mode", spec.AccessModes())
	completeChoice(cmd, "attachment-mode", spec.AttachmentModes())
}

// read reads the flags. The calling service provides the alloc and the owner if no flag does.
func (o *volumeClaimOptions) read(a *app, cmd *cobra.Command, id string) (err error) {
	o.volume = id
	if cmd.Flags().Changed("per-alloc") {
		o.volume = fmt.Sprintf("%s[%d]", id, o.perAlloc)
	}

	if !cmd.Flags().Changed("alloc") {
		o.alloc = defaultAlloc(a)
	}

	if o.req.Owner = defaultOwner(a); cmd.Flags().Changed("owner") {
		if o.req.Owner, err = parseOwner(o.owner); err != nil {
			return err
		}
	}

	if o.req.Ownership, err = o.own.read(); err != nil {
		return err
	}

	return o.check()
}

// check refuses options that no agent would accept.
func (o *volumeClaimOptions) check() error {
	if err := checkVolumeID(o.volume); err != nil {
		return failed(err, "claim volume %q", o.volume)
	}
	if err := checkAlloc(o.alloc); err != nil {
		return failed(err, "claim volume %q", o.volume)
	}
	if err := api.CheckNote(o.req.Note); err != nil {
		return failed(err, "claim volume %q", o.volume)
	}
	if err := checkTimeout(o.timeout); err != nil {
		return err
	}

	if o.req.AccessMode != "" {
		if err := oneOf("access-mode", o.req.AccessMode, spec.AccessModes()); err != nil {
			return err
		}
	}

	if o.req.AttachmentMode != "" {
		if err := oneOf("attachment-mode", o.req.AttachmentMode, spec.AttachmentModes()); err != nil {
			return err
		}
	}

	if o.req.At != "" && !filepath.IsAbs(o.req.At) {
		return usage("--at "+suggest.Quote("/path/to/"+o.req.At), "--at needs an absolute path, not %q", o.req.At)
	}

	return nil
}

func runVolumeClaim(ctx context.Context, o volumeClaimOptions, client *apiclient.Client, out *output) error {
	claim, err := o.make(ctx, client, out)
	if err != nil {
		return failed(err, "claim volume %q for alloc %q", o.volume, o.alloc)
	}
	if claim.State != api.ClaimTaken && out.human() {
		out.note("the claim is %s; to wait for it: %s", claim.State, suggest.Command("volctl wait --volume %s --for mounted", o.volume))
		return nil
	}

	return out.print(claim, []string{claim.Path}, func(w *bytes.Buffer) error {
		w.WriteString(claim.Path + "\n")
		return nil
	})
}
