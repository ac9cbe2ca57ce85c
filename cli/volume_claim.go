package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/volmgr/suggest"
)

const (
	// claimTimeout stays below the 90 s that systemd gives a unit to start.
	claimTimeout = 80 * time.Second

	// answerGrace is the time that the agent gets, after the timeout, to answer that the time is
	// over.
	answerGrace = 15 * time.Second

	// retryEvery is the interval between attempts to reach an agent that went away.
	retryEvery = 250 * time.Millisecond

	// withdrawGrace limits how long an interrupted volctl watches its claim.
	withdrawGrace = 3 * time.Second
)

type volumeClaimOptions struct {
	volume, alloc string
	req           api.ClaimRequest
	own           ownershipFlags
	perAlloc      uint
	owner         string
	timeout       time.Duration

	// grace is the time to answer after the timeout; 0 means answerGrace.
	grace  time.Duration
	noWait bool
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
		o.alloc = a.defaultAlloc()
	}

	if o.req.Owner = a.defaultOwner(); cmd.Flags().Changed("owner") {
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

func checkTimeout(d time.Duration) error {
	if d <= 0 {
		return usage("", "--timeout must be more than 0")
	}
	return nil
}

func runVolumeClaim(ctx context.Context, o volumeClaimOptions, client *apiclient.Client, out *output) error {
	claim, err := o.make(ctx, client, out)
	if err != nil {
		return failed(err, "claim volume %q for alloc %q", o.volume, o.alloc)
	}
	if claim.State != api.ClaimMounted && out.human() {
		out.note("the claim is %s; to wait for it: %s", claim.State, suggest.Command("volctl wait --volume %s --for mounted", o.volume))
		return nil
	}

	return out.print(claim, []string{claim.Path}, func(w *bytes.Buffer) error {
		w.WriteString(claim.Path + "\n")
		return nil
	})
}

// make makes the claim. Without an error, the volume is mounted, unless noWait is set. An error
// says what happened to the claim.
func (o *volumeClaimOptions) make(ctx context.Context, client *apiclient.Client, out *output) (*api.Claim, error) {
	end := o.progress(ctx, client, out)
	claim, stays, err := o.claim(ctx, client)
	end()

	switch {
	case ctx.Err() != nil && err != nil && !o.noWait:
		return nil, o.afterInterrupt(client)
	case err != nil && stays:
		return nil, hinted(err, "the agent was restarted meanwhile, so the claim may still stand: "+o.detachCommand())
	case err != nil:
		return nil, explain(ctx, client, err, o.volume)
	case claim.State != api.ClaimMounted && !o.noWait:
		return nil, &api.Error{Code: api.CodeFailed, Message: "the claim is " + claim.State, Hint: suggest.Command("volctl volume status %s", o.volume)}
	}

	return claim, nil
}

// progress shows the claim's progress. Without a terminal, it does so only with --recursive:
// changing the owner of many files can take minutes although nothing is wrong.
func (o *volumeClaimOptions) progress(ctx context.Context, client *apiclient.Client, out *output) (end func()) {
	if o.noWait || !o.req.Recursive && out.terminalWidth() == 0 {
		return func() {}
	}
	return out.during(ctx, fmt.Sprintf("claiming volume %q", o.volume), volumeProgress(client, o.volume, ""))
}

// claim makes the call. If the agent goes away during the call, it is probably being restarted, so
// claim asks again until the timeout. The claim is durable; only the waiting request was lost.
// After that, an answer cannot tell which request made the claim. So the claim may stay after a
// failure.
func (o *volumeClaimOptions) claim(ctx context.Context, client *apiclient.Client) (claim *api.Claim, stays bool, err error) {
	if o.noWait {
		claim, err = client.ClaimVolume(ctx, o.volume, o.alloc, o.req, 0)
		return claim, false, err
	}

	deadline := time.Now().Add(o.timeout)
	ctx, cancel := context.WithDeadline(ctx, deadline.Add(cmp.Or(o.grace, answerGrace)))
	defer cancel()

	for {
		claim, err = client.ClaimVolume(ctx, o.volume, o.alloc, o.req, max(time.Until(deadline), time.Millisecond))
		stays = stays || dropped(err)
		if !stays || codeOf(err) != api.CodeUnreachable || time.Now().After(deadline) {
			return claim, stays, err
		}
		if sleep(ctx, retryEvery) != nil {
			return nil, stays, ctx.Err()
		}
	}
}

// dropped reports whether the agent had been reached before it went away.
func dropped(err error) bool {
	var e *api.Error
	return errors.As(err, &e) && e.Details[apiclient.DetailDropped] != ""
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// afterInterrupt says what happened to an interrupted claim. When the connection closes, the agent
// withdraws a claim that this call made. volctl watches the claim for a moment, so that the message
// is not a guess.
func (o *volumeClaimOptions) afterInterrupt(client *apiclient.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), withdrawGrace)
	defer cancel()

	for {
		claim, err := client.Claim(ctx, o.volume, o.alloc)
		switch {
		case isNotFound(err):
			return interrupted("it was interrupted, and the claim is withdrawn", "")
		case err == nil && !claim.Wanted:
			return interrupted("it was interrupted; the claim is withdrawn, and its detach continues", suggest.Command("volctl volume status %s", o.volume))
		case err != nil && ctx.Err() == nil:
			return interrupted("it was interrupted; what became of the claim is unknown: "+err.Error(), suggest.Command("volctl claim list --volume %s", o.volume))
		}

		if sleep(ctx, retryEvery/5) != nil {
			return interrupted(fmt.Sprintf("it was interrupted; alloc %q still has a claim, which was there before this call", o.alloc), o.detachCommand())
		}
	}
}

func (o *volumeClaimOptions) detachCommand() string {
	return suggest.Command("volctl volume detach %s %s", o.volume, o.alloc)
}
