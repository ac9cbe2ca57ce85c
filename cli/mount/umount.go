package mount

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

// whoseWithin limits the request for the claim of a mount. The directory can be unmounted even if
// this request fails.
const whoseWithin = 5 * time.Second

type umountOptions struct {
	dir         string
	lazy, force bool
	timeout     time.Duration
	host        Host

	// plain is set for umount.csi, which must unmount any mount, because umount(8) expects it to.
	plain bool
}

// NewUmount returns the command "volctl umount".
func NewUmount(a *command.App, host Host) *cobra.Command {
	o := umountOptions{host: host}
	cmd := &cobra.Command{
		Use: "umount DIR", Short: "Unmount a directory that volctl mount mounted, and detach its claim",
		Long: `Unmount a directory that volctl mount or mount -t csi mounted, detach its claim, and wait for
that.

The kernel refuses the unmount while the directory is in use. The command then exits 4, names the
users of the directory, and changes nothing. After the unmount, the detach continues by itself,
even if the command stops waiting for it (5). Without an agent, the command still unmounts the
directory. The agent detaches the claim when it runs.`,
		Args: command.Exactly("DIR"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := command.CheckTimeout(o.timeout); err != nil {
				return err
			}
			if o.dir, err = filepath.Abs(args[0]); err != nil || args[0] == "" {
				return command.Failed(command.Usage("name it by its absolute path", "cannot resolve that directory"), "unmount %q", args[0])
			}

			return a.Do(cmd, o.run)
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVarP(&o.lazy, "lazy", "l", false, "unmount the directory while it is in use (umount -l); open files stay usable")
	f.BoolVarP(&o.force, "force", "f", false, "abort operations that hang (umount -f), if the file system supports it")
	command.DurationVar(f, &o.timeout, "timeout", command.ClaimTimeout, "how long to wait for the detach; it continues after that")

	return cmd
}

// unmounted is the JSON output of "volctl umount".
type unmounted struct {
	Dir    string `json:"dir"`
	Volume string `json:"volume,omitempty"`
	Alloc  string `json:"alloc,omitempty"`

	// Outcome is "detached", or "unmounted" if the agent has not detached the claim yet.
	Outcome string `json:"outcome"`
	Warning string `json:"warning,omitempty"`
}

func (o umountOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	done, err := o.umount(ctx, client)
	if err == nil && done.Warning != "" {
		out.Note("%s", done.Warning)
	}

	if err != nil {
		return err
	}

	return out.Print(done, []string{done.Volume}, func(w *bytes.Buffer) error {
		w.WriteString(done.said() + "\n")
		return nil
	})
}

func (d *unmounted) said() string {
	if d.Outcome != "detached" {
		return output.Printable("unmounted " + d.Dir)
	}
	return output.Printable(fmt.Sprintf("unmounted %s and detached volume %q", d.Dir, d.Volume))
}

// umount unmounts the directory, in these steps:
//
//  1. It finds the claim of the mount, which would not be possible after the unmount.
//  2. It unmounts the directory in this process, as umount(8) does.
//  3. It asks the agent to detach the claim, and waits. The agent may have started the detach
//     already. If this step fails, it returns the error and also the result of the unmount.
func (o *umountOptions) umount(ctx context.Context, client *apiclient.Client) (*unmounted, error) {
	deadline := time.Now().Add(o.timeout)
	what := func(err error) error { return command.Failed(err, "unmount %s", o.dir) }

	text, err := o.host.Mounts()
	if err != nil {
		return nil, what(fmt.Errorf("cannot read the mount table: %w", err))
	}

	above := at(readTable(text), o.dir)
	claim, unasked := o.whose(ctx, client)

	if !o.plain {
		if err := o.known(claim, unasked, above); err != nil {
			return nil, what(err)
		}
	}

	if len(above) > 0 || o.plain {
		if err := o.unmount(ctx); err != nil {
			return nil, what(err)
		}
	}

	done := &unmounted{Dir: o.dir, Outcome: "unmounted"}
	switch {
	case len(above) > 1:
		done.Warning = fmt.Sprintf("something was mounted over another mount at %s, which is still there: %s", o.dir, above[len(above)-2])
		return done, nil
	case unasked != nil:
		done.Warning = fmt.Sprintf("%s is unmounted; the agent detaches its volume when it runs: %s", o.dir, command.Wire(unasked).Message)
		return done, nil
	case claim == nil:
		return done, nil
	}

	done.Volume, done.Alloc = claim.Volume, claim.Alloc
	return done, o.release(ctx, client, claim, done, deadline)
}

// whose returns the claim that is mounted at the directory, or nil if there is none. If plain is
// set, whose ignores a claim that does not end when its mount is unmounted, such as the claim of a
// service.
func (o *umountOptions) whose(ctx context.Context, client *apiclient.Client) (*api.Claim, error) {
	ctx, cancel := context.WithTimeout(ctx, whoseWithin)
	defer cancel()

	claims, err := client.Claims(ctx, apiclient.ClaimFilter{})
	if err != nil {
		return nil, err
	}

	var found *api.Claim
	for i, c := range claims {
		if c.At == o.dir && (found == nil || c.Wanted) {
			found = &claims[i]
		}
	}

	if o.plain && found != nil && !ofItsMount(found) {
		return nil, nil //nolint:nilnil // there is no such claim
	}

	return found, nil
}

// ofItsMount reports whether the claim ends when its mount is unmounted. An adopted claim, whose
// owner is not known, also ends in this way.
func ofItsMount(c *api.Claim) bool { return c.Owner.Kind == api.OwnerMount || c.Adopted }

// known returns an error unless the mount at the directory belongs to a claim that ends with its
// mount.
func (o *umountOptions) known(claim *api.Claim, unasked error, above []mounted) error {
	table, _ := o.host.Table() // an unreadable table counts as empty
	switch {
	case unasked != nil && len(above) > 0 && remembered(table, o.dir, above[len(above)-1]):
		return nil
	case unasked != nil:
		return command.Hinted(unasked, suggest.Command("umount %s", o.dir)+" works without the agent, which detaches the volume when it runs")
	case claim != nil && !ofItsMount(claim):
		return refusedPoint(api.CodeRefused, suggest.Command("volctl volume detach %s %s", claim.Volume, claim.Alloc),
			"volume %q is mounted there for alloc %q, whose claim does not end with that mount", claim.Volume, claim.Alloc)
	case claim != nil:
		return nil
	case len(above) == 0:
		return refusedPoint(api.CodeNotFound, "volctl claim list", "nothing is mounted there")
	}

	return refusedPoint(api.CodeRefused, suggest.Command("umount %s", o.dir), "the mount there is not a volume of volagent: %s", above[len(above)-1])
}

// unmount calls umount2(2) and waits until the timeout. The call may hang together with the
// storage, and cannot be cancelled.
func (o *umountOptions) unmount(ctx context.Context) error {
	flags := unix.UMOUNT_NOFOLLOW
	if o.lazy {
		flags |= unix.MNT_DETACH
	}

	if o.force {
		flags |= unix.MNT_FORCE
	}

	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()

	answer := make(chan error, 1)
	go func() { answer <- o.host.Unmount(o.dir, flags) }()

	var err error
	select {
	case err = <-answer:
	case <-ctx.Done():
		return refusedPoint(api.CodeTimeout, suggest.Command("umount -l %s", o.dir), "the kernel does not answer: %v; the unmount continues", context.Cause(ctx))
	}

	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EBUSY):
		return busy(o.dir, o.host)
	case errors.Is(err, unix.EPERM):
		return refusedPoint(api.CodePermission, "run it as root", "no permission to unmount")
	case errors.Is(err, unix.EINVAL):
		return refusedPoint(api.CodeNotFound, "", "nothing is mounted there")
	case errors.Is(err, unix.ENOENT):
		return refusedPoint(api.CodeNotFound, "", "there is no %s", o.dir)
	}

	return refusedPoint(api.CodeFailed, "", "%v", err)
}

// release asks the agent to detach a claim whose mount has been unmounted.
func (o *umountOptions) release(ctx context.Context, client *apiclient.Client, claim *api.Claim, done *unmounted, deadline time.Time) error {
	call, cancel := context.WithDeadline(ctx, deadline.Add(Grace))
	defer cancel()

	how := apiclient.DetachOptions{Wait: max(time.Until(deadline), time.Millisecond)}
	_, err := client.Detach(call, claim.Volume, claim.Alloc, how)
	if command.CodeOf(err) == api.CodeRefused && claim.Owner.Kind == api.OwnerMount && claim.State == api.ClaimMounted && !o.again() {
		// The agent had unmounted the volume in order to mount it again, so this unmount did not
		// end the claim. The user wants the claim to end, so force the detach.
		how.Force = true
		_, err = client.Detach(call, claim.Volume, claim.Alloc, how)
	}

	status := suggest.Command("volctl volume status %s", claim.Volume)
	switch {
	case err == nil || command.IsNotFound(err):
		done.Outcome = "detached"
		return nil
	case command.CodeOf(err) == api.CodeUnreachable:
		done.Warning = fmt.Sprintf("%s is unmounted; the agent detaches volume %q when it runs: %s", o.dir, claim.Volume, command.Wire(err).Message)
		return nil
	case command.CodeOf(err) == api.CodeRefused && o.again():
		done.Warning = fmt.Sprintf("%s was unmounted, and volume %q is mounted there again", o.dir, claim.Volume)
		return nil
	case ctx.Err() != nil:
		err = command.Interrupted("it was interrupted; the detach continues", status)
	case command.CodeOf(err) == api.CodeTimeout:
		err = command.Hinted(&api.Error{Code: api.CodeTimeout, Message: command.Wire(err).Message}, status)
	}

	return command.Failed(err, "detach volume %q yet (%s is unmounted, and the agent continues)", claim.Volume, o.dir)
}

// again reports whether anything is now mounted at the directory.
func (o *umountOptions) again() bool {
	text, err := o.host.Mounts()
	return err == nil && len(at(readTable(text), o.dir)) > 0
}
