package cluster

import (
	"bytes"
	"context"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/etcd/wire"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

// These are the default directories of volagent-etcd and of the agent's configuration.
const (
	defaultDataDir   = "/var/lib/volagent-etcd"
	defaultConfigDir = "/etc/volagent"
)

// group holds the options that all commands of the group share.
type group struct {
	app       *command.App
	dataDir   string
	configDir string
}

func defaultDir(a *command.App, name, fallback string) string {
	if dir := a.Env.Getenv(name); dir != "" {
		return dir
	}
	return fallback
}

// request completes a request with the directories.
func (g *group) request(r wire.Request) wire.Request {
	r.DataDir, r.ConfigDir = g.dataDir, g.configDir
	return r
}

// do runs a command that changes the cluster, and prints its outcome.
func (g *group) do(cmd *cobra.Command, r wire.Request, format string, args ...any) error {
	return g.app.Do(cmd, func(ctx context.Context, _ *apiclient.Client, out *output.Printer) error {
		done, err := call[wire.Done](ctx, g.app, g.request(r))
		if err != nil {
			return command.Failed(err, format, args...)
		}
		return out.Print(done, idsOf(done), func(w *bytes.Buffer) error {
			for _, line := range done.Lines {
				w.WriteString(output.OneLine(line) + "\n")
			}
			if done.Token != "" {
				w.WriteString(done.Token + "\n")
			}
			return nil
		})
	})
}

// idsOf returns the output of -q: the token or the file that the command made, or the cluster's id.
func idsOf(done wire.Done) []string {
	switch {
	case done.Token != "":
		return []string{done.Token}
	case done.File != "":
		return []string{done.File}
	default:
		return []string{done.ClusterID}
	}
}
