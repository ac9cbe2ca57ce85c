package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

// testTimeout is the default timeout of a test.
const testTimeout = 10 * time.Minute

type testOptions struct {
	id         string
	ask        api.PluginTest
	context    []string
	secrets    []string
	params     []string
	size       string
	fsType     string
	mountFlags []string
	timeout    time.Duration
}

func newTest(a *command.App) *cobra.Command {
	var o testOptions
	cmd := &cobra.Command{
		Use: "test ID", Short: "Check whether a plugin does everything that the agent needs",
		Long: `Check a plugin with a scratch volume, and print the result of each check. A result is ok,
works-around (the plugin deviates, and the agent copes), broken (the agent cannot work safely with
the plugin), or skipped. docs/drivers.md explains each check. The exit code is 1 if any result is
broken.

The test creates the volume and deletes it again. Give --param and --size if the plugin needs
them. With --external-id, the test uses a volume that you have. It writes one file, removes it,
and touches nothing else in the volume. Volumes that are in use through the plugin are not
affected. With --kill, the test kills the plugin's process a few times. That is refused (4) while
volumes are in use through it. With --fence, the test detaches the scratch volume while a process
writes to it, and checks that no further write succeeds. Try this before you set fence: detach in the
plugin file.

Ctrl-C ends the test, and the agent undoes its effects. If a test was cut short, the next test
undoes its leftovers, and so does the agent when it starts.`,
		Example: `  volctl plugin test hostpath --kill
  volctl plugin test nfs --param server=nas --param share=/export
  volctl plugin test rbd --external-id vol-7 --context pool=test --secret userKey=file:/etc/ceph/key`,
		Args: command.Exactly("ID"), ValidArgsFunction: command.CompleteArg(a, command.PluginIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.id = args[0]
			if err := o.check(); err != nil {
				return command.Failed(err, "test plugin %q", o.id)
			}
			return a.Do(cmd, o.run)
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.ask.ExternalID, "external-id", "", "test with the storage volume of this `ID`; the test writes to it")
	f.StringArrayVar(&o.context, "context", nil, "`KEY=VALUE` of that volume's context; may be repeated")
	f.StringArrayVar(&o.secrets, "secret", nil, command.SecretUsage)
	f.StringArrayVar(&o.params, "param", nil, "`KEY=VALUE` parameter for creating the volume; may be repeated")
	f.StringVar(&o.size, "size", "", "`SIZE` of the volume, as in 1GiB (default: the plugin decides)")
	f.StringVar(&o.ask.AccessMode, "access-mode", "", "access `MODE` of the test (default the single-node mode that allows most)")
	f.StringVar(&o.fsType, "fs-type", "", "file system `TYPE` to request")
	f.StringArrayVar(&o.mountFlags, "mount-flag", nil, "mount `OPTION`; may be repeated")
	f.BoolVar(&o.ask.Kill, "kill", false, "also kill the plugin's process, and check that the process and the mount recover")
	f.BoolVar(&o.ask.Fence, "fence", false, "also check that a detach cuts this host off from the scratch volume while it writes")
	f.BoolVar(&o.ask.Forget, "forget", false, "discard the leftovers of an earlier test that cannot be undone")
	command.DurationVar(f, &o.timeout, "timeout", testTimeout, "how long the test may take; the agent undoes its effects after that")
	command.CompleteChoice(cmd, "access-mode", spec.AccessModes())

	return cmd
}

func (o *testOptions) check() (err error) {
	if err := errors.Join(command.CheckPluginID(o.id), command.CheckTimeout(o.timeout)); err != nil {
		return err
	}

	o.ask.Timeout = o.timeout.String()
	if o.ask.Context, err = command.KeyValues("context", o.context); err != nil {
		return err
	}
	if len(o.ask.Context) > 0 && o.ask.ExternalID == "" {
		return command.Usage("", "--context belongs to a volume that --external-id names")
	}
	if o.ask.Fence && o.ask.ExternalID != "" {
		return command.Usage("", "--fence could damage the volume that --external-id names; the test must create a volume of its own")
	}
	if o.ask.Parameters, err = command.KeyValues("param", o.params); err != nil {
		return err
	}
	if o.ask.Secrets, err = command.SecretRefs(o.secrets); err != nil {
		return err
	}

	if o.size != "" {
		if o.ask.Capacity, err = bytesize.Parse(o.size); err != nil {
			return command.Usage("", "--size: %v", err)
		}
	}

	if o.fsType != "" || len(o.mountFlags) > 0 {
		o.ask.MountOptions = &api.MountOptions{FSType: o.fsType, MountFlags: o.mountFlags}
	}

	if o.ask.AccessMode == "" {
		return nil
	}

	return command.OneOf("access-mode", o.ask.AccessMode, spec.AccessModes())
}

// testResult is the JSON output of a complete plugin test.
type testResult struct {
	Plugin  string                 `json:"plugin"`
	Checks  []api.PluginCheck      `json:"checks"`
	Summary *api.PluginTestSummary `json:"summary,omitempty"`
}

func (o testOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	t := testResult{Plugin: o.id, Checks: []api.PluginCheck{}}
	var bad []string

	// Each result is printed when it arrives, so the widths of the columns cannot be calculated in
	// advance. These widths are sufficient for most results.
	table := out.NewRows([]string{"Check", "Result", "Took", "Said"}, 18, 12, 7)
	sum, err := client.TestPlugin(ctx, o.id, o.ask, func(c api.PluginCheck) error {
		if c.Result == api.CheckBroken {
			bad = append(bad, c.Check)
		}

		t.Checks = append(t.Checks, c)
		if !out.Human() || out.Quiet {
			return nil
		}
		return table.Add(c.Check, c.Result, tookWords(c.TookMS), c.Said)
	})

	t.Summary = sum
	if ctx.Err() != nil {
		err = command.Interrupted("it was interrupted; the agent removes the scratch volume of the test", "volctl events --since 5m")
	} else {
		err = command.ExplainPlugin(ctx, client, err, o.id)
	}

	if len(t.Checks) > 0 {
		if perr := o.conclude(out, t, bad); perr != nil {
			return perr
		}
	}

	if err == nil && len(bad) > 0 {
		return &api.Error{
			Code: api.CodeFailed, Message: fmt.Sprintf("plugin %q does not meet the agent's requirements: %s", o.id, strings.Join(bad, ", ")),
			Hint: suggest.Command("volctl plugin logs %s", o.id),
		}
	}

	return command.Failed(err, "test plugin %q", o.id)
}

// conclude prints the summary of the test below the table. If the output is for a program, it
// prints the complete test instead.
func (o *testOptions) conclude(out *output.Printer, t testResult, bad []string) error {
	if !out.Human() || out.Quiet {
		return out.Print(t, bad, nil)
	}
	if t.Summary == nil {
		return nil
	}

	return out.Print(t, nil, func(w *bytes.Buffer) error {
		s := t.Summary
		fmt.Fprintf(w, "\n%d ok, %d worked around, %d broken, %d skipped\n", s.OK, s.WorkAround, s.Broken, s.Skipped)
		out.Line(w, "", facts(s))
		return nil
	})
}

func tookWords(ms float64) string {
	d := time.Duration(ms * float64(time.Millisecond))
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond).String()
	default:
		return d.Round(100 * time.Microsecond).String()
	}
}

// facts returns a line that describes the plugin.
func facts(s *api.PluginTestSummary) string {
	has := func(yes bool, word string) string {
		if yes {
			return word
		}
		return "no " + word
	}

	words := []string{has(s.Creates, "create"), has(s.Attaches, "attach"), has(s.Stages, "stage")}
	if s.Stages && !s.StageMounts && s.Mounts != "" {
		words[2] += " (mounts nothing)"
	}

	if s.Mounts != "" {
		words = append(words, s.Mounts+" mounts of "+s.FSType)
	}

	return output.Joined(" ", s.Driver, s.Version) + ": " + strings.Join(words, ", ")
}
