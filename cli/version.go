package cli

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

// versionTimeout limits how long volctl waits for the version of the agent.
const versionTimeout = 2 * time.Second

// versions is the JSON output of "volctl version". Agent is empty if the agent did not answer.
type versions struct {
	Client string `json:"client"`
	Agent  string `json:"agent,omitempty"`
	Socket string `json:"socket"`
	Error  string `json:"error,omitempty"`
}

func newVersion(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the versions of volctl and the agent",
		Long: `Print the version of volctl, and the version of the agent if it answers. The exit code is 0 in
both cases.`,
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.Do(cmd, runVersion) },
	}
}

func runVersion(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()

	v := versions{Client: api.Version, Socket: client.Socket()}
	health, err := client.Health(ctx)
	agent := ""

	if err != nil {
		v.Error = command.Wire(err).Message
		agent = "not asked: " + v.Error
	} else {
		v.Agent = health.Version
		agent = fmt.Sprintf("%s (%s)", v.Agent, v.Socket)
	}

	return out.Print(v, []string{v.Client}, func(w *bytes.Buffer) error {
		return out.Table(w, "", nil, [][]string{{"volctl", v.Client}, {"agent", agent}})
	})
}
