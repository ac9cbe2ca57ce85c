package plugin

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/recipe"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
)

// exampleName is the name of the file that shows all keys. It is not for a particular driver.
const exampleName = "example"

// runtimeAuto stands for a container runtime that the host has.
const runtimeAuto = "auto"

// initOptions holds the options of the command init.
type initOptions struct {
	name, file string
	runtime    string
	pull       bool
	set        []string // NAME=VALUE
	setSecret  []string // NAME=FILE or NAME=-
	secretDir  string

	// read reads a file, or stdin if the file is "-".
	read func(ctx context.Context, file string) ([]byte, error)
}

func newInit(a *command.App) *cobra.Command {
	var o initOptions
	cmd := &cobra.Command{
		Use: "init [NAME] [FILE]", Short: "Write the plugin file of a known driver",
		Long: `Write the plugin file of a known driver. Without NAME, list the known drivers in groups. The file
also shows the requirements on this host and matching volumes. FILE is NAME.yaml by default, and -
is stdout.

The file has enabled: false, so the agent does not use it yet. Give the driver's values with --set
and its secrets with --set-secret. The command writes each secret to a file of its own with the
mode 0600, in --secret-dir. The plugin file names only the path. If a required value is missing,
the file contains a placeholder for it. Then run "volctl plugin enable".

The command does not overwrite an existing file. The name example writes a file with all keys, for
any other driver. For a driver that cannot run here, the command explains why, and names others.`,
		Example: `  volctl plugin init
  volctl plugin init nfs
  volctl plugin init hetzner /etc/volagent/plugins.d/hetzner.yaml --set-secret token=-`,
		Args: command.Between(0, "NAME", "FILE"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return append(recipe.Names(), exampleName), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.args(args)
			o.read = func(ctx context.Context, file string) ([]byte, error) {
				_, data, err := a.ReadFile(ctx, file)
				return data, err
			}
			return a.Do(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
				return runInit(ctx, o, client, out)
			})
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.runtime, "runtime", runtimeAuto, "`RUNTIME` of the container: podman, docker, or auto for the one that this host has")
	f.BoolVar(&o.pull, "pull", false, "let the agent pull the image if it is not on the host")
	f.StringArrayVar(&o.set, "set", nil, "`NAME=VALUE` of the driver; may be repeated")
	f.StringArrayVar(&o.setSecret, "set-secret", nil, "`NAME=FILE` with a secret of the driver, or NAME=- for stdin; may be repeated")
	f.StringVar(&o.secretDir, "secret-dir", "", "`DIR` for the files with secrets (default: secrets beside a directory plugins.d, otherwise "+recipe.DefaultSecretDir+")")
	return cmd
}

// args takes the arguments of the command.
func (o *initOptions) args(args []string) {
	switch {
	case len(args) == 1 && args[0] == "-":
		o.name, o.file = exampleName, "-"
	case len(args) > 0:
		o.name, o.file = args[0], args[0]+".yaml"
	}
	if len(args) > 1 {
		o.file = args[1]
	}
}

func runInit(ctx context.Context, o initOptions, _ *apiclient.Client, out *output.Printer) error {
	if o.name == "" {
		if len(o.set) > 0 || len(o.setSecret) > 0 {
			return command.Usage("volctl plugin init lists the drivers", "--set and --set-secret need the NAME of a driver")
		}
		return listRecipes(out)
	}
	if o.name == exampleName {
		text := spec.PluginExample()
		return command.WriteNew(out, text, o.file, "volctl plugin init - prints it", o.register())
	}

	r, ok := recipe.Find(o.name)
	if !ok {
		return unknownDriver(o.name)
	}
	return writeRecipe(ctx, o, r, out)
}

// unknownDriver returns the error for a driver without a recipe.
func unknownDriver(name string) error {
	if u, known := recipe.FindUnsupported(name); known {
		return command.Usage("instead, use: "+strings.Join(u.Alternatives, "; "),
			"%s has no recipe, because it cannot run without Kubernetes: %s (%s %s)", name, u.Reason, u.Source.Repository, u.Source.Version)
	}

	names := append(recipe.Names(), exampleName)
	for _, u := range recipe.AllUnsupported() {
		names = append(names, u.Name)
	}
	hint := "volctl plugin init lists the drivers; volctl plugin init example shows all keys for any other driver"
	if near := spec.Near(name, names); len(near) > 0 {
		hint = "did you mean " + near[0] + "?"
	}
	return command.Usage(hint, "no recipe for %q is known", name)
}

// register returns the command that passes the file to the agent.
func (o *initOptions) register() string {
	if inPluginDir(o.file) {
		return "volctl plugin list"
	}
	return suggest.Command("volctl plugin register %s", o.file)
}

// inPluginDir reports whether a file seems to be in the plugin directory, whose files the agent loads itself.
func inPluginDir(file string) bool {
	dir, err := filepath.Abs(filepath.Dir(file))
	return err == nil && file != "-" && filepath.Base(dir) == pluginDirName
}

// pluginDirName is the name of the plugin directory without its path. The path is part of the
// agent's configuration, which volctl does not know.
const pluginDirName = "plugins.d"

// secrets returns the directory for the files with secrets, as an absolute path.
func (o *initOptions) secrets() (string, error) {
	switch {
	case o.secretDir != "":
		return filepath.Abs(o.secretDir)
	case inPluginDir(o.file):
		return filepath.Abs(filepath.Join(filepath.Dir(o.file), "..", "secrets"))
	default:
		return recipe.DefaultSecretDir, nil
	}
}

// containerRuntime returns the runtime for the plugin file. For auto it prefers podman, because docker
// may need the plugin for its own volumes when it starts.
func (o *initOptions) containerRuntime() (string, error) {
	switch o.runtime {
	case plugin.RuntimePodman, plugin.RuntimeDocker:
		return o.runtime, nil
	case runtimeAuto:
	default:
		return "", command.Usage("", "--runtime %q is neither podman nor docker nor auto", o.runtime)
	}

	for _, name := range []string{plugin.RuntimePodman, plugin.RuntimeDocker} {
		if _, err := exec.LookPath(name); err == nil {
			return name, nil
		}
	}
	return plugin.RuntimePodman, nil
}

// listed is a driver in the list of the command init.
type listed struct {
	Name         string   `json:"name"`
	Group        string   `json:"group,omitempty"`
	Title        string   `json:"title"`
	Version      string   `json:"version"`
	Ran          bool     `json:"ran"` // whether the driver was run with the recipe
	Reason       string   `json:"reason,omitempty"`
	Alternatives []string `json:"alternatives,omitempty"`
}

// listRecipes prints the known drivers in groups.
func listRecipes(out *output.Printer) error {
	var all []listed
	var b bytes.Buffer
	width := 0
	for _, r := range recipe.All() {
		width = max(width, len(r.Name))
	}

	row := func(name, title string) {
		b.WriteString("  " + name + strings.Repeat(" ", width-len(name)+2) + title + "\n")
	}
	for _, g := range recipe.Groups() {
		b.WriteString(g.Title + "\n")
		for _, r := range recipe.All() {
			if r.Group == g.Name {
				row(r.Name, r.Title)
				all = append(all, listed{Name: r.Name, Group: g.Name, Title: r.Title, Version: r.Source.Version, Ran: r.Ran})
			}
		}
		b.WriteString("\n")
	}

	b.WriteString("Drivers that need Kubernetes (volctl plugin init NAME explains it)\n")
	for _, u := range recipe.AllUnsupported() {
		row(u.Name, u.Title)
		all = append(all, listed{Name: u.Name, Title: u.Title, Version: u.Source.Version, Reason: u.Reason, Alternatives: u.Alternatives})
	}
	b.WriteString("\nvolctl plugin init NAME writes the plugin file of a driver, and volctl plugin init example one with all keys.\n")

	return out.Print(all, recipe.Names(), func(w *bytes.Buffer) error {
		w.Write(b.Bytes())
		return nil
	})
}
