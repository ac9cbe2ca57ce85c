package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/volagent/volagent/agent/apiclient"
)

// readTimeout bounds commands that only read. The agent answers those at once unless it is in
// trouble, and then the operator needs an error.
const readTimeout = 30 * time.Second

// app is one run: its environment and the flags that all commands share.
type app struct {
	env     Environment
	socket  string
	format  string
	json    bool
	quiet   bool
	noColor bool

	// running is set when the command's own code starts. An error before that point is an error of
	// the command line.
	running bool
}

func newApp(env Environment) *app {
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

// output makes the output from the flags.
func (a *app) output() (*output, error) {
	o := options{
		stdout: a.env.Stdout, stderr: a.env.Stderr, format: a.format, quiet: a.quiet,
		now: a.env.Now, pause: a.env.Pause, columns: func() int { return 0 },
	}
	if o.pause == nil {
		o.pause = sleep
	}

	dumb := a.env.Getenv("TERM") == "dumb"
	if a.env.StderrColumns != nil && !dumb {
		o.columns = a.env.StderrColumns
	}

	o.colour = a.env.StdoutTerminal && !a.noColor && a.env.Getenv("NO_COLOR") == "" && !dumb
	if a.json {
		if name, _, _ := strings.Cut(a.format, "="); name != formatTable && name != formatJSON {
			return nil, usage("", "--json and -o %s exclude each other", a.format)
		}
		o.format = formatJSON
	}

	return newOutput(o)
}

// outputUsage describes the values of --output.
const outputUsage = "`FORMAT`: table, wide, json, yaml or go-template=TEMPLATE"

// flags adds the flags that all commands share.
func (a *app) flags(f *pflag.FlagSet) {
	f.StringVar(&a.socket, "socket", a.socket, "`PATH` of the agent's socket; also VOLCTL_SOCKET")
	f.StringVarP(&a.format, "output", "o", a.format, outputUsage)
	f.BoolVar(&a.json, "json", false, "short for -o json")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "print only ids")
	f.BoolVar(&a.noColor, "no-color", false, "do not print colours; also NO_COLOR")
}

// longOutputFlag adds --output to a command where -o means mount options.
func (a *app) longOutputFlag(f *pflag.FlagSet) {
	f.StringVar(&a.format, "output", a.format, outputUsage)
}
