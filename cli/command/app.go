// Package command contains the code that the commands of volctl share. It holds the environment and
// the flags of a run, parses argv, completes words, looks up ids, wraps errors, asks questions, and
// waits for claims. It imports no command, so that each noun can be a package of its own.
package command

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/output"
)

// ReadTimeout bounds commands that only read. The agent answers those at once unless it is in
// trouble, and then the operator needs an error.
const ReadTimeout = 30 * time.Second

// App is one run: its environment and the flags that all commands share.
type App struct {
	Env     Env
	Socket  string
	format  string
	json    bool
	quiet   bool
	noColor bool

	// running is set when the command's own code starts. An error before that point is an error of
	// the command line.
	running bool
}

// NewApp starts a run. VOLCTL_SOCKET replaces the default socket.
func NewApp(env Env) *App {
	a := &App{Env: env, Socket: env.Getenv("VOLCTL_SOCKET"), format: output.FormatTable}
	if a.Socket == "" {
		a.Socket = apiclient.DefaultSocket
	}
	return a
}

// action does the work of one command.
type action func(ctx context.Context, client *apiclient.Client, out *output.Printer) error

// Do connects to the agent and runs the command's work.
func (a *App) Do(cmd *cobra.Command, act action) error {
	out, err := a.output()
	if err != nil {
		return err
	}
	a.running = true
	client := apiclient.New(a.Socket)
	defer client.Close()
	return act(cmd.Context(), client, out)
}

// Read runs a command that only reads and does not wait. It applies ReadTimeout.
func (a *App) Read(cmd *cobra.Command, act action) error {
	return a.Do(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
		ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
		defer cancel()
		return act(ctx, client, out)
	})
}

// output makes the output from the flags.
func (a *App) output() (*output.Printer, error) {
	o := output.Options{
		Stdout: a.Env.Stdout, Stderr: a.Env.Stderr, Format: a.format, Quiet: a.quiet,
		Now: a.Env.Now, Pause: a.Env.Pause, Columns: func() int { return 0 }, Device: a.Env.device,
	}
	if a.Env.StdoutColumns != nil {
		o.Width = a.Env.StdoutColumns()
	}
	if o.Pause == nil {
		o.Pause = Sleep
	}

	dumb := a.Env.Getenv("TERM") == "dumb"
	if a.Env.StderrColumns != nil && !dumb {
		o.Columns = a.Env.StderrColumns
	}

	o.Colour = a.Env.StdoutTerminal && !a.noColor && a.Env.Getenv("NO_COLOR") == "" && !dumb
	if a.json {
		if name, _, _ := strings.Cut(a.format, "="); name != output.FormatTable && name != output.FormatJSON {
			return nil, Usage("", "--json and -o %s exclude each other", a.format)
		}
		o.Format = output.FormatJSON
	}

	return output.NewPrinter(o)
}

// outputUsage describes the values of --output.
const outputUsage = "`FORMAT`: table, wide, json, yaml or go-template=TEMPLATE"

// AddFlags adds the flags that all commands share.
func (a *App) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&a.Socket, "socket", a.Socket, "`PATH` of the agent's socket; also VOLCTL_SOCKET")
	f.StringVarP(&a.format, "output", "o", a.format, outputUsage)
	f.BoolVar(&a.json, "json", false, "short for -o json")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "print only ids")
	f.BoolVar(&a.noColor, "no-color", false, "do not print colours; also NO_COLOR")
}

// AddLongOutputFlag adds --output to a command where -o means mount options.
func (a *App) AddLongOutputFlag(f *pflag.FlagSet) {
	f.StringVar(&a.format, "output", a.format, outputUsage)
}
