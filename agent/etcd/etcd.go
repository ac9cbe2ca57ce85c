// Package etcd contains the commands of volagent-etcd, the bundled etcd of a cluster. Its
// subpackages do the work: daemon runs on each host, and control carries out the commands of
// "volctl cluster".
package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/etcd/control"
	"github.com/volagent/volagent/agent/etcd/daemon"
	"github.com/volagent/volagent/agent/etcd/hostdir"
	"github.com/volagent/volagent/agent/etcd/server"
)

// These are the exit codes of volagent-etcd. systemd does not start the unit again after exitLeft.
const (
	exitFailed = 1
	exitUsage  = 2
	exitLeft   = 3
)

// errAnswered means that the command has failed and has written its error already.
var errAnswered = errors.New("the command failed")

// Main runs volagent-etcd with its arguments and returns the exit code.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	syscall.Umask(0o077)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()

	cmd := Command()
	cmd.SetArgs(args)
	cmd.SetIn(stdin)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if errors.Is(err, errAnswered) {
		return exitFailed
	}

	message := "volagent-etcd: " + err.Error() + "\n"
	code := exitFailed
	var known *api.Error
	if errors.As(err, &known) {
		if known.Hint != "" {
			message += "hint: " + known.Hint + "\n"
		}
		if known.Code == api.CodeNotFound {
			code = exitLeft
		}
	}
	if errors.Is(err, daemon.ErrLeft) {
		code = exitLeft
	}
	if _, werr := io.WriteString(stderr, message); werr != nil {
		return exitUsage
	}
	return code
}

// Command returns the commands of volagent-etcd.
func Command() *cobra.Command {
	dir := hostdir.Dir{Data: hostdir.DefaultDataDir, Config: hostdir.DefaultConfigDir}
	root := &cobra.Command{
		Use: "volagent-etcd", Short: "Run the bundled etcd of a cluster",
		Long: `Run the bundled etcd of a cluster on this host, until SIGTERM. The program is separate from
volagent, so that an upgrade of the agent never stops a member of etcd.

The commands of "volctl cluster" set up the host: it is a member, which runs etcd, or a client,
which only renews its certificates here. On a host that is in no cluster, the program ends with
exit code 3.`,
		Version: api.Version, Args: cobra.NoArgs, SilenceErrors: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := hclog.New(&hclog.LoggerOptions{Name: "volagent-etcd", Output: cmd.ErrOrStderr(), DisableTime: true})
			return daemon.Run(cmd.Context(), dir, log)
		},
	}
	root.SetVersionTemplate(fmt.Sprintf("volagent-etcd {{.Version}} (etcd %s)\n", server.Version))
	root.CompletionOptions.DisableDefaultCmd = true
	root.Flags().StringVar(&dir.Data, "data-dir", dir.Data, "`DIR` with the certificates and the data of etcd")
	root.Flags().StringVar(&dir.Config, "config-dir", dir.Config, "`DIR` with the agent's configuration, in which cluster.yaml is written")

	root.AddCommand(&cobra.Command{
		Use: "control", Short: "Carry out a request of volctl on standard input", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !control.Serve(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout()) {
				return errAnswered
			}
			return nil
		},
	})
	return root
}
