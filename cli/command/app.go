// Package command contains code that all commands of volctl share: the environment, the flags, and
// the parsing of argv. It also contains shell completion, the lookup of ids, error messages,
// questions, and waiting for a claim. It does not import any command, so each group of commands can
// have its own package.
package command

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/output"
)

// ReadTimeout is the time limit of commands that only read. A healthy agent answers them
// immediately. If the agent is not healthy, an error helps the operator more than a long wait.
const ReadTimeout = 30 * time.Second

// App represents one run of volctl. It holds the environment and the flags that all commands share.
type App struct {
	Env     Env
	Socket  string
	format  string
	json    bool
	quiet   bool
	noColor bool

	// running is set when the code of the command starts. An error before this point is a usage
	// error.
	running bool
}

// NewApp returns the App for a new run. VOLCTL_SOCKET replaces the default path of the socket.
func NewApp(env Env) *App {
	return &App{Env: env, Socket: cmp.Or(env.Getenv("VOLCTL_SOCKET"), apiclient.DefaultSocket), format: output.FormatTable}
}

// action does the work of a command. It gets a client for the agent.
type action func(ctx context.Context, client *apiclient.Client, out *output.Printer) error

// Do creates a client for the agent and runs the action of a command.
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

// Read is like Do, but limits the action to ReadTimeout. It is for commands that only read and do
// not wait.
func (a *App) Read(cmd *cobra.Command, act action) error {
	return a.Do(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
		ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
		defer cancel()
		return act(ctx, client, out)
	})
}

// output returns a Printer for the output flags.
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

// outputUsage is the help text of the flag --output.
const outputUsage = "`FORMAT`: table, wide, json, yaml or go-template=TEMPLATE"

// AddFlags adds the flags that all commands share.
func (a *App) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&a.Socket, "socket", a.Socket, "`PATH` of the agent's socket; also VOLCTL_SOCKET")
	f.StringVarP(&a.format, "output", "o", a.format, outputUsage)
	f.BoolVar(&a.json, "json", false, "short for -o json")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "print only ids")
	f.BoolVar(&a.noColor, "no-color", false, "do not print colours; also NO_COLOR")
}

// AddLongOutputFlag adds --output, but not -o, to a command in which -o means mount options.
func (a *App) AddLongOutputFlag(f *pflag.FlagSet) {
	f.StringVar(&a.format, "output", a.format, outputUsage)
}
