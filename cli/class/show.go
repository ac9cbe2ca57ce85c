package class

import (
	"bytes"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

func newShow(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Print a class as a class file",
		Long: `Print a class as a class file in YAML. For a StorageClass of Kubernetes, the output is the class in
the agent's own format, to which you can add secrets and limits. A unique prefix of the id is
enough.`,
		Example: `  volctl class show fast
  volctl class show gp3 > gp3.yaml`,
		Args: command.Exactly("ID"), ValidArgsFunction: command.CompleteArg(a, command.ClassIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Read(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
				return runShow(ctx, args[0], client, out)
			})
		},
	}
}

func runShow(ctx context.Context, id string, client *apiclient.Client, out *output.Printer) error {
	c, err := command.FindClass(ctx, client, id)
	if err != nil {
		return command.Failed(err, "show class %q", id)
	}
	if c.Spec.PluginID == "" && c.Spec.Driver == "" {
		return command.Failed(unreadable(c), "show class %q", id)
	}

	return out.Print(c.Spec, []string{c.Spec.ID}, func(w *bytes.Buffer) error {
		text, err := spec.WriteClass(c.Spec)
		w.Write(text)
		return err
	})
}

// unreadable returns the error for a class whose file the agent cannot read.
func unreadable(c *api.Class) error {
	return &api.Error{Code: api.CodeRefused, Message: fmt.Sprintf("%s: %s", place(c), c.Problem), Hint: "fix it, then: systemctl reload volagent"}
}

// place returns the file of a class, and the line of its problem.
func place(c *api.Class) string {
	if c.Line == 0 {
		return c.File
	}
	return fmt.Sprintf("%s:%d", c.File, c.Line)
}
