package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/apiclient"
)

// readTimeout bounds commands that only read: the agent answers those at once,
// or it is in trouble and a person should be told.
const readTimeout = 30 * time.Second

// app is one run: its surroundings and the flags all commands share.
type app struct {
	env     Env
	socket  string
	format  string
	json    bool
	quiet   bool
	noColor bool
	// running is set once a command's own code is reached. What fails before
	// is the command line's fault.
	running bool
}

func newApp(env Env) *app {
	a := &app{env: env, socket: env.Getenv("VOLCTL_SOCKET"), format: formatTable}
	if a.socket == "" {
		a.socket = apiclient.DefaultSocket
	}
	return a
}

// action is a command's work.
type action func(ctx context.Context, client *apiclient.Client, out *output) error

// do runs a command's work.
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

// read runs the work of a command that only reads and does not wait.
func (a *app) read(cmd *cobra.Command, act action) error {
	return a.do(cmd, func(ctx context.Context, client *apiclient.Client, out *output) error {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		return act(ctx, client, out)
	})
}
