package plugin

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

type initOptions struct{ name, file string }

func newInit(a *command.App) *cobra.Command {
	var o initOptions
	return &cobra.Command{
		Use: "init [NAME] [FILE]", Short: "Write a commented plugin file to start from",
		Long: `Write a commented plugin file for the image that a driver's makers publish. The file also shows
the requirements on this host and matching volumes. FILE is NAME.yaml by default, and - is stdout.
The command does not overwrite an existing file. Without NAME, it writes plugin.yaml with all
keys. If NAME is -, it prints that file.

NAME is one of:
` + examples(),
		Example: "  volctl plugin init nfs\n  volctl plugin init ebs /etc/volagent/plugins.d/ebs.yaml",
		Args:    command.Between(0, "NAME", "FILE"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return spec.PluginExamples(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.file = "plugin.yaml"
			switch {
			case len(args) == 1 && args[0] == "-":
				o.file = "-"
			case len(args) > 0:
				o.name, o.file = args[0], args[0]+".yaml"
			}

			if len(args) > 1 {
				o.file = args[1]
			}

			return a.Do(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
				return runInit(ctx, o, client, out)
			})
		},
	}
}

func runInit(_ context.Context, o initOptions, _ *apiclient.Client, out *output.Printer) error {
	text, ok := spec.PluginExample(o.name)
	if !ok {
		names := spec.PluginExamples()
		hint := "volctl plugin init shows all keys for any other driver"
		if near := spec.Near(o.name, names); len(near) > 0 {
			hint = "did you mean " + near[0] + "?"
		}
		return command.Usage(hint, "there is no plugin file of %q: there are %s", o.name, strings.Join(names, ", "))
	}

	another := suggest.Command("volctl plugin init %s ANOTHER-FILE", o.name)
	if o.name == "" {
		another = "volctl plugin init - prints it"
	}

	return command.WriteNew(out, text, o.file, another, o.next())
}

// next returns the command that the user must run after editing the file. No command is needed if
// the file is in the plugin directory, because the agent loads the files there itself.
func (o initOptions) next() string {
	if dir, err := filepath.Abs(filepath.Dir(o.file)); err == nil && filepath.Base(dir) == pluginDirName {
		return "volctl plugin list"
	}
	return suggest.Command("volctl plugin register %s", o.file)
}

// pluginDirName is the name of the plugin directory without its path. The path is part of the
// agent's configuration, which volctl does not know.
const pluginDirName = "plugins.d"

// examples lists the available plugin files, for the help text.
func examples() string {
	var b strings.Builder
	for _, name := range spec.PluginExamples() {
		b.WriteString("- " + name + ": " + spec.PluginSummary(name) + "\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}
