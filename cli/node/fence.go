package node

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

type fenceOptions struct {
	host, reason string
	off          bool
}

// newFence returns the command "volctl node fence".
func newFence(a *command.App) *cobra.Command {
	var o fenceOptions
	cmd := &cobra.Command{
		Use: "fence HOST", Short: "State that a host is switched off, so that other hosts take over its volumes",
		Long: `State that a host is switched off. Other hosts then take over the shared volumes of the host that
they wait for. The cluster records who has said so, when and why.

The statement must be true. If the host still runs, it may write to its volumes together with
another host, and destroy the data. Look at the machine or at its power supply, not at the network.
The command is refused while the agent of the host is alive; a host that is alive is drained.

When the host is back, it unmounts the lost volumes, and registers by itself.`,
		Example: `  volctl node fence db2 --powered-off --reason "pulled both power cords"`,
		Args:    command.Exactly("HOST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.host = args[0]
			again := suggest.Command("volctl node fence %s --powered-off --reason TEXT", o.host)
			if strings.TrimSpace(o.reason) == "" {
				return command.Usage(again, "the fencing of a host needs a reason")
			}
			if !o.off {
				return command.Usage(again, "host %q must be switched off first; repeat the command with --powered-off if you have seen that it is", o.host)
			}
			return a.Do(cmd, o.run)
		},
	}

	cmd.Flags().StringVar(&o.reason, "reason", "", "how you know that the host is off; `TEXT` is recorded in the cluster")
	cmd.Flags().BoolVar(&o.off, "powered-off", false, "you have seen that the host is switched off")
	return cmd
}

func (o fenceOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	f, err := client.FenceHost(ctx, o.host, o.reason)
	if err != nil {
		return command.Failed(err, "fence host %q", o.host)
	}

	return out.Print(f, f.Taken, func(w *bytes.Buffer) error {
		fmt.Fprintf(w, "host %s is fenced: %s\n", f.Host, proofWords(f.Proof, out))
		fmt.Fprintf(w, "volumes that other hosts waited for: %s\n", cmp.Or(strings.Join(f.Taken, ", "), "none"))
		return nil
	})
}

// proofWords describes a proof in one line.
func proofWords(p api.FenceProof, out *output.Printer) string {
	words := fmt.Sprintf("%s, by %s, %s ago", p.Kind, p.Who, output.Since(out.Now(), p.At))
	if p.Reason != "" {
		words += ": " + p.Reason
	}
	return words
}

// newUnfence returns the command "volctl node unfence".
func newUnfence(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use: "unfence HOST", Short: "Give a fenced host its access to the storage back",
		Long: `Ask the fence hooks of this host to give a host its access to the storage back. This is necessary
after a hook that has cut the host off from the storage or the network. A host that was switched off
and on again needs no unfence: it registers by itself.

The command is refused while the host may still have volumes mounted that it has lost.`,
		Example: `  volctl node unfence db2`,
		Args:    command.Exactly("HOST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Do(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
				u, err := client.UnfenceHost(ctx, args[0])
				if err != nil {
					return command.Failed(err, "unfence host %q", args[0])
				}
				return out.Print(u, u.Hooks, func(w *bytes.Buffer) error {
					fmt.Fprintf(w, "host %s has its access back; hooks: %s\n", u.Host, cmp.Or(strings.Join(u.Hooks, ", "), "none"))
					return nil
				})
			})
		},
	}
}

type fenceTestOptions struct {
	host string
	off  bool
}

// newFenceTest returns the command "volctl node fence-test".
func newFenceTest(a *command.App) *cobra.Command {
	var o fenceTestOptions
	cmd := &cobra.Command{
		Use: "fence-test HOST", Short: "Ask the fence hooks of this host about another host",
		Long: `Ask each fence hook of this host whether another host is on or off. This changes nothing.

With --off, the hooks really switch the host off, as they would after its loss. The command is
refused while the host holds shared volumes. Drain the host first, and switch it on again after the
test. Run the test on each host, because any host may have to fence another one.`,
		Example: `  volctl node fence-test db2
  volctl node fence-test db2 --off`,
		Args: command.Exactly("HOST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.host = args[0]
			return a.Do(cmd, o.run)
		},
	}

	cmd.Flags().BoolVar(&o.off, "off", false, "switch the host off, and check that the hook then reports it as off")
	return cmd
}

func (o fenceTestOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	t, err := client.TestFence(ctx, o.host, o.off)
	if err != nil {
		return command.Failed(err, "test the fencing of host %q", o.host)
	}

	return out.Print(t, t.Answers, func(w *bytes.Buffer) error {
		for _, answer := range t.Answers {
			fmt.Fprintln(w, answer)
		}
		return nil
	})
}
