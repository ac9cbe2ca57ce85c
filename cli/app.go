package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/apiclient"
)

// readTimeout bounds commands that only read. The agent answers those at once unless it is in
// trouble, and then the operator needs an error.
const readTimeout = 30 * time.Second

// app is one run: its environment and the flags that all commands share.
type app struct {
	env     Env
	socket  string
	format  string
	json    bool
	quiet   bool
	noColor bool

	// running is set when the command's own code starts. An error before that point is an error of
	// the command line.
	running bool
}

func newApp(env Env) *app {
	a := &app{env: env, socket: env.Getenv("VOLCTL_SOCKET"), format: formatTable}
	if a.socket == "" {
		a.socket = apiclient.DefaultSocket
	}
	return a
}

// action does the work of one command.
type action func(ctx context.Context, client *apiclient.Client, out *output) error

// do connects to the agent and runs the command's work.
func (a *app) do(cmd *cobra.Command, act action) error {
	out, err := a.output()
	if err != nil {
		return err
	}
	a.running = true
	client := apiclient.New(a.socket)
	defer client.Close()
	return act(cmd.Context(), client, out)
}

// read runs a command that only reads and does not wait. It applies readTimeout.
func (a *app) read(cmd *cobra.Command, act action) error {
	return a.do(cmd, func(ctx context.Context, client *apiclient.Client, out *output) error {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		return act(ctx, client, out)
	})
}
