package volume

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

type detachOptions struct {
	volume         string
	allocs         []string
	all            bool
	force          bool
	without        string
	timeout        time.Duration
	noWait         bool
	ignoreNotFound bool
}

func newDetach(a *command.App) *cobra.Command {
	var o detachOptions
	cmd := &cobra.Command{
		Use: "detach ID [ALLOC...]", Short: "Detach claims and unmount the volume",
		Long: `Detach the claims of allocs on a volume, and wait until it is unmounted. Without an alloc, the
command detaches the volume's only claim. A claim whose owner is alive is refused without --force.

A plugin that is down, hangs or fails blocks a detach. With --without-plugin, the agent does not
wait for the plugin. It gives up the running call, unmounts the volume itself, and ends the claim.
The value limits the unmount:
- umount (the default): a plain umount
- force: umount, then umount -f
- lazy: both, then a lazy umount; programs that have the volume open can still use it

The agent goes no further than you asked. If a mount stays busy, the command is refused (4) and
names its users. When the plugin is ready, the agent makes the pending calls before it stages the
volume again. ControllerUnpublish also waits until nothing on the host uses the device. The
command prints the leftovers.`,
		Example: `  volctl volume detach data
  volctl volume detach data web.service --without-plugin
  volctl volume detach data web.service --without-plugin=lazy
  volctl volume detach data web.service backup
  volctl volume detach data --all`,
		Args: cobra.ArbitraryArgs, ValidArgsFunction: command.CompleteAllocs(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return command.Exactly("ID")(cmd, args)
			}

			o.volume, o.allocs = args[0], args[1:]
			if err := o.check(); err != nil {
				return err
			}

			return a.Do(cmd, o.run)
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&o.all, "all", false, "detach all claims on the volume")
	f.BoolVar(&o.force, "force", false, "unmount even if the owner is alive")
	f.StringVar(&o.without, "without-plugin", "", "unmount without calling the plugin: `[=umount|force|lazy]`")
	f.Lookup("without-plugin").NoOptDefVal = "umount"
	command.DurationVar(f, &o.timeout, "timeout", command.ClaimTimeout, "how long to wait for the detach; it continues after that")
	f.BoolVar(&o.noWait, "no-wait", false, "do not wait; the detach continues")
	f.BoolVar(&o.ignoreNotFound, "ignore-not-found", false, "exit 0 if there is nothing to detach")
	command.NomadFlags(cmd.Flags(), "namespace")

	return cmd
}

func (o *detachOptions) check() error {
	if err := command.CheckVolumeID(o.volume); err != nil {
		return command.Failed(err, "detach volume %q", o.volume)
	}

	for i, alloc := range o.allocs {
		if err := command.CheckAlloc(alloc); err != nil {
			return command.Failed(err, "detach volume %q", o.volume)
		}
		if slices.Contains(o.allocs[:i], alloc) {
			return command.Usage("", "alloc %q is named twice", alloc)
		}
	}

	if !slices.Contains([]string{"", "umount", "force", "lazy"}, o.without) {
		return command.Usage("--without-plugin=umount, =force or =lazy", "--without-plugin=%s is not a way to unmount", o.without)
	}
	if o.all && len(o.allocs) > 0 {
		return command.Usage("", "--all and allocs by name exclude each other")
	}

	return command.CheckTimeout(o.timeout)
}

func (o detachOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	allocs, err := o.targets(ctx, client)
	if command.IsNotFound(err) && o.ignoreNotFound {
		return out.Print([]*released{}, nil, output.NothingToDo)
	}
	if err != nil {
		return command.Failed(command.Explain(ctx, client, err, o.volume), "detach volume %q", o.volume)
	}

	releases, errs := make([]*released, len(allocs)), make([]error, len(allocs))
	end := o.progress(ctx, client, out)

	var wg sync.WaitGroup
	for i, alloc := range allocs {
		// Detach the claims in parallel, so that a slow claim does not delay the others.
		wg.Go(func() { releases[i], errs[i] = o.release(ctx, client, alloc) })
	}

	wg.Wait()
	end()

	releases = slices.DeleteFunc(releases, func(r *released) bool { return r == nil })
	if err := out.Print(releases, allocsOf(releases), o.screen(releases)); err != nil {
		return err
	}

	return command.Join(errs)
}

// progress shows the volume's current step on a terminal, and the processes that prevent the
// unmount.
func (o *detachOptions) progress(ctx context.Context, client *apiclient.Client, out *output.Printer) (end func()) {
	if o.noWait || out.Columns() == 0 {
		return func() {}
	}
	return out.During(ctx, fmt.Sprintf("detaching volume %q", o.volume), command.VolumeProgress(client, o.volume, ""))
}

// released is the JSON output for a detached claim.
type released struct {
	Volume string `json:"volume"`
	Alloc  string `json:"alloc"`

	// Outcome is "detached", or "detaching" with --no-wait.
	Outcome string `json:"outcome"`

	// Left lists the leftovers if the claim was detached without the plugin.
	Left []string `json:"left,omitempty"`
}

// targets returns the allocs of the claims that the command detaches.
func (o *detachOptions) targets(ctx context.Context, client *apiclient.Client) ([]string, error) {
	if len(o.allocs) > 0 {
		return o.allocs, nil
	}

	v, err := client.Volume(ctx, o.volume)
	if err != nil {
		return nil, err
	}

	held := make([]string, len(v.Claims))
	for i, c := range v.Claims {
		held[i] = c.Alloc
	}

	switch {
	case len(held) == 0:
		return nil, &api.Error{Code: api.CodeNotFound, Message: "it has no claims", Hint: suggest.Command("volctl volume status %s", o.volume)}
	case len(held) > 1 && !o.all:
		return nil, &api.Error{
			Code: api.CodeInvalid, Message: fmt.Sprintf("it has %d claims, of allocs %s", len(held), output.QuotedList(held)),
			Hint:    suggest.Command("volctl volume detach %s ALLOC", o.volume) + ", or --all",
			Details: map[string]string{"allocs": strings.Join(held, "\n")},
		}
	}

	return held, nil
}

// release detaches a claim. If the claim does not exist and --ignore-not-found is set, it returns
// nil.
func (o *detachOptions) release(ctx context.Context, client *apiclient.Client, alloc string) (*released, error) {
	ro, outcome := apiclient.DetachOptions{Force: o.force, WithoutPlugin: o.without}, "detaching"
	if !o.noWait {
		ro.Wait, outcome = o.timeout, "detached"
	}

	call, cancel := context.WithTimeout(ctx, o.timeout+command.AnswerGrace)
	defer cancel()

	done, err := client.Detach(call, o.volume, alloc, ro)
	switch {
	case err == nil:
		return &released{Volume: o.volume, Alloc: alloc, Outcome: outcome, Left: done.Left}, nil
	case command.IsNotFound(err) && o.ignoreNotFound:
		return nil, nil //nolint:nilnil // nothing to do is what was asked for
	case ctx.Err() != nil:
		err = command.Interrupted("it was interrupted; the detach continues", suggest.Command("volctl volume status %s", o.volume))
	case command.IsNotFound(err) && o.namesNode(ctx, client, alloc):
		err = command.Hinted(err, "unlike Nomad, name no node: volctl detaches the claims of allocs on this host, with "+
			suggest.Command("volctl volume detach %s", o.volume)+" ALLOC, or --all")
	default:
		err = command.Explain(ctx, client, err, o.volume, alloc)
	}

	return nil, command.Failed(err, "detach volume %q from alloc %q", o.volume, alloc)
}

// nodeID matches the ids of Nomad's nodes, in full and as Nomad shortens them.
var nodeID = regexp.MustCompile(`^[0-9a-f]{8}(?:-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})?$`)

// namesNode reports whether an argument is probably the name of a node, which "nomad volume detach"
// requires.
func (o *detachOptions) namesNode(ctx context.Context, client *apiclient.Client, name string) bool {
	if _, err := client.Volume(ctx, o.volume); err != nil {
		return false
	}
	if nodeID.MatchString(name) {
		return true
	}
	n, err := client.Node(ctx)
	return err == nil && n.ID == name
}

func (o *detachOptions) screen(releases []*released) func(*bytes.Buffer) error {
	if len(releases) == 0 && o.ignoreNotFound {
		return output.NothingToDo
	}

	return func(w *bytes.Buffer) error {
		for _, r := range releases {
			fmt.Fprintf(w, "%s volume %q from alloc %q\n", r.Outcome, r.Volume, r.Alloc)
			for _, l := range r.Left {
				w.WriteString("left: " + output.OneLine(l) + "\n")
			}
		}
		return nil
	}
}

func allocsOf(releases []*released) []string {
	allocs := make([]string, len(releases))
	for i, r := range releases {
		allocs[i] = r.Alloc
	}
	return allocs
}
