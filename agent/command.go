package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/config"
	"github.com/volagent/volagent/agent/inspect"
	"github.com/volagent/volagent/agent/listen"
	"github.com/volagent/volagent/agent/localdriver"
	"github.com/volagent/volagent/agent/process"
	"github.com/volagent/volagent/agent/supervisor/transient"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// These are the exit codes of volagent. After exitUsage, a restart by systemd would not help.
const (
	exitFailed = 1
	exitUsage  = 2
)

// Main runs volagent with its arguments and returns the exit code.
func Main(args []string, stdout, stderr io.Writer, seams Seams) int {
	// The kernel prefers to deliver signals to the main thread, even if that thread is blocked by
	// storage that hangs. LockOSThread therefore keeps other goroutines off the main thread.
	runtime.LockOSThread()
	// Users of volumes must be able to enter the directories above the targets, and the directories
	// that plugins create. The umask of the calling process must not prevent this.
	syscall.Umask(0o022)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()

	cmd := newCommand(stderr, seams)
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}

	msg := "volagent: " + err.Error() + "\n"
	var de *volume.Error
	if errors.As(err, &de) && suggest.Hint(de.Remedy, de.Hint) != "" {
		msg += "hint: " + suggest.Hint(de.Remedy, de.Hint) + "\n"
	}
	if _, werr := io.WriteString(stderr, msg); werr != nil || errors.Is(err, volume.ErrInvalid) {
		return exitUsage
	}

	return exitFailed
}

// Command returns the command `volagent` with its subcommands, only to generate descriptions.
func Command(stderr io.Writer) *cobra.Command { return newCommand(stderr, Seams{}) }

// newCommand returns the command `volagent` with its subcommands.
func newCommand(stderr io.Writer, seams Seams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "volagent",
		Short: "Serve CSI volumes to this host",
		Long: "volagent supervises CSI plugins and mounts their volumes for the services, containers and shells of this host.\n" +
			"Talk to it with volctl.",
		Args:          usageArgs,
		Version:       api.Version,
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := process.NoCoreDumps(); err != nil {
				return err
			}
			return run(cmd.Context(), cmd.Flags(), stderr, seams)
		},
	}

	config.AddFlags(cmd.PersistentFlags())
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return volume.Errorf(volume.ErrInvalid, "%v", err).WithHint("volagent --help")
	})
	cmd.AddCommand(newCheckConfig(), newInspect(), newLocalDriver(stderr), newLaunch(), newLend())
	return cmd
}

func usageArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return volume.Errorf(volume.ErrInvalid, "unknown command %q", args[0]).WithHint("volagent --help")
	}
	return nil
}

func newCheckConfig() *cobra.Command {
	quiet := false
	cmd := &cobra.Command{
		Use:   "check-config",
		Short: "Check the configuration and print the values in force",
		Args:  usageArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(cmd.Flags())
			if err != nil || quiet {
				return err
			}
			return c.Describe(cmd.OutOrStdout())
		},
	}

	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print nothing unless there is a mistake")
	return cmd
}

// newInspect returns the command `volagent inspect`, which compares the records with the host
// without an agent.
func newInspect() *cobra.Command {
	var asJSON, inUse bool
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "Compare recorded state with actual mounts (works without the agent)",
		Long: "Read a copy of the state database and the mount table, and compare them. The command prints\n" +
			"volumes, claims, mounts, pending calls, leftovers, plugins, and changes without a known result. It\n" +
			"also prints the volume names of docker and podman, and mounts that no record explains. It changes\n" +
			"nothing, and contacts neither an agent nor a plugin. It exits 1 if the host differs from the\n" +
			"records, or if it cannot read the database. Without the database, it still prints the mounts.\n\n" +
			"With --in-use, the command prints instead everything that prevents the removal of volagent from\n" +
			"this host. Each line is one obstacle with the command that ends it. The exit code is 1 if there is\n" +
			"any.",
		Args: usageArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(cmd.Flags())
			if err != nil {
				// The command is for hosts whose agent does not start. A mistake in the
				// configuration may be the reason.
				cmd.PrintErrf("volagent: warning: %v; inspecting data dir %s all the same\n", err, c.DataDir)
			}

			if !filepath.IsAbs(c.DataDir) {
				return err
			}

			in, err := inspect.Look(cmd.Context(), c.Dirs(), c.StateFile())
			if err != nil {
				return err
			}
			if inUse {
				return in.InUse(cmd.OutOrStdout())
			}

			show := in.Text
			if asJSON {
				show = in.JSON
			}
			if err := show(cmd.OutOrStdout()); err != nil {
				return err
			}
			if len(in.Findings) > 0 {
				return fmt.Errorf("%d findings", len(in.Findings))
			}

			return nil
		},
	}

	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&inUse, "in-use", false, "print claimed, mounted and attached volumes, and pending calls")
	cmd.MarkFlagsMutuallyExclusive("json", "in-use")
	return cmd
}

// newLocalDriver returns the command that runs the bundled driver. The supervisor starts it in a
// separate process and calls it over a CSI socket, like any other driver.
func newLocalDriver(stderr io.Writer) *cobra.Command {
	var o localdriver.Options
	cmd := &cobra.Command{
		Use:    localDriverCommand,
		Short:  "Serve the bundled CSI driver on a socket",
		Hidden: true,
		Args:   usageArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Version = api.Version
			o.Log = hclog.New(&hclog.LoggerOptions{Name: "local", Level: hclog.Info, Output: stderr})
			if err := localdriver.Run(cmd.Context(), o); err != nil {
				return fmt.Errorf("the local driver stopped: %w", err)
			}
			return nil
		},
	}

	fl := cmd.Flags()
	fl.StringVar(&o.Endpoint, "endpoint", "", "CSI endpoint, unix://PATH")
	fl.StringVar(&o.NodeID, "node-id", "", "CSI node id")
	fl.StringVar(&o.StateDir, "state-dir", "", "directory of the volumes")
	return cmd
}

// newLaunch returns the command that replaces itself with a plugin's command. It runs in the
// service that systemd starts for the plugin.
func newLaunch() *cobra.Command {
	return &cobra.Command{
		Use:    launchCommand,
		Short:  "Replace this process with the command from standard input",
		Hidden: true,
		Args:   usageArgs,
		RunE:   func(*cobra.Command, []string) error { return transient.Launch() },
	}
}

// newLend returns the command that opens a socket for the agent. It runs in a service that systemd
// starts only for this purpose.
func newLend() *cobra.Command {
	return &cobra.Command{
		Use:    lendCommand + " ADDRESS SOCKET",
		Short:  "Open a TCP socket for the agent",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE:   func(cmd *cobra.Command, args []string) error { return listen.Lend(cmd.Context(), args[0], args[1]) },
	}
}
