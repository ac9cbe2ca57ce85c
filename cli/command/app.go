// Package command contains the code that the commands of volctl share: the environment and flags of
// a run, the parsing of argv, completion, the lookup of ids, error messages, questions, and the
// wait for a claim. It imports no command, so that the commands of each noun can have a package of
// their own.
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

// ReadTimeout limits commands that only read. A healthy agent answers them at once. If the agent is
// not healthy, the operator needs an error rather than a long wait.
const ReadTimeout = 30 * time.Second

// App is one run of volctl: its environment, and the flags that all commands share.
type App struct {
	Env     Env
	Socket  string
	format  string
	json    bool
	quiet   bool
	noColor bool

	// running is set when the command's own code starts. An error before that is a usage error.
	running bool
}

// NewApp returns the App of a new run. VOLCTL_SOCKET replaces the default socket.
func NewApp(env Env) *App {
	return &App{Env: env, Socket: cmp.Or(env.Getenv("VOLCTL_SOCKET"), apiclient.DefaultSocket), format: output.FormatTable}
}

// action does the work of one command, with a client of the agent.
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

// Read is like Do, for a command that only reads and does not wait. It applies ReadTimeout.
func (a *App) Read(cmd *cobra.Command, act action) error {
	return a.Do(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
		ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
		defer cancel()
		return act(ctx, client, out)
	})
}

// output returns the Printer that the flags ask for.
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

// AddLongOutputFlag adds --output to a command where -o means mount options.
func (a *App) AddLongOutputFlag(f *pflag.FlagSet) {
	f.StringVar(&a.format, "output", a.format, outputUsage)
}
