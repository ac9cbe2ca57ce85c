package plugin

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
)

// enableOptions holds the options of the commands enable and disable.
type enableOptions struct {
	id, file string
	yes      bool
	terminal bool
	ask      command.Asker
	tell     func(format string, args ...any)
}

func newEnable(a *command.App) *cobra.Command {
	o := enableOptions{tell: a.Complain}
	cmd := &cobra.Command{
		Use: "enable ID", Short: "Let the agent use a plugin file that is disabled",
		Long: `Set enabled: true in the file of a plugin, and change nothing else in it. First, the command shows
the rights that the file gives to the plugin: privileges, host paths, namespaces and devices. Then
it asks for confirmation. Without a terminal, the command is refused (4) unless you give -y.

The command is refused (4) while a required value of the driver is a placeholder or empty, and
while the file of a secret is missing or empty. The agent notices the changed file by itself.

The agent says which file defines the plugin. For a file that is not in its plugin directory, or
without a running agent, name the file with --file.`,
		Example: `  volctl plugin enable hetzner
  volctl plugin enable hetzner -y --file hetzner.yaml`,
		Args: command.Exactly("ID"), ValidArgsFunction: command.CompleteArg(a, command.PluginIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.id, o.terminal = args[0], a.Env.StdinTerminal
			if err := command.CheckPluginID(o.id); err != nil {
				return command.Failed(err, "enable plugin %q", o.id)
			}
			return a.Do(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
				o.ask = a.Asker(o.yes)
				return command.Failed(runEnable(ctx, &o, client, out), "enable plugin %q", o.id)
			})
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	f.StringVar(&o.file, "file", "", "use this plugin `FILE`, in place of the one that the agent knows")
	return cmd
}

func newDisable(a *command.App) *cobra.Command {
	var o enableOptions
	cmd := &cobra.Command{
		Use: "disable ID", Short: "Let the agent ignore a plugin's file",
		Long: `Set enabled: false in the file of a plugin, and change nothing else in it. The agent notices the
changed file by itself, and stops the plugin. The volumes stay registered.

The command is refused (4) while a volume of the plugin is claimed or on this host.`,
		Example: "  volctl plugin disable hetzner",
		Args:    command.Exactly("ID"), ValidArgsFunction: command.CompleteArg(a, command.PluginIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.id = args[0]
			if err := command.CheckPluginID(o.id); err != nil {
				return command.Failed(err, "disable plugin %q", o.id)
			}
			return a.Do(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
				return command.Failed(runDisable(ctx, &o, client, out), "disable plugin %q", o.id)
			})
		},
	}
	return cmd
}

// pluginFile is a plugin file that the command changes.
type pluginFile struct {
	path string
	text []byte
	def  *plugin.Definition
}

// switched is the result of the commands enable and disable.
type switched struct {
	ID      string   `json:"id"`
	Enabled bool     `json:"enabled"`
	Changed bool     `json:"changed"`
	Files   []string `json:"files"`
}

func runEnable(ctx context.Context, o *enableOptions, client *apiclient.Client, out *output.Printer) error {
	files, err := o.files(ctx, client)
	if err != nil {
		return err
	}

	off := slices.DeleteFunc(slices.Clone(files), func(f pluginFile) bool { return !f.def.Disabled })
	if len(off) == 0 {
		return o.done(out, files, true, false)
	}
	if err := checkFilled(o.id, off); err != nil {
		return err
	}
	if err := o.confirm(ctx, off); err != nil {
		return err
	}
	if err := setEnabled(off, true); err != nil {
		return err
	}
	return o.done(out, off, true, true)
}

// confirm shows the rights that the files give, and asks the user.
func (o *enableOptions) confirm(ctx context.Context, files []pluginFile) error {
	for _, f := range files {
		o.tell("%s lets plugin %q have:\n", output.Printable(f.path), o.id)
		for _, g := range grants(f.def) {
			o.tell("  %-11s %s\n", g.what, output.OneLine(g.how))
		}
	}

	switch {
	case o.yes:
		return nil
	case !o.terminal:
		return &api.Error{Code: api.CodeRefused, Message: "it needs a confirmation, and there is no terminal", Hint: suggest.Command("volctl plugin enable %s -y", o.id)}
	}
	yes, err := o.ask(ctx, fmt.Sprintf("Enable plugin %q?", o.id))
	if err != nil || !yes {
		return command.NotConfirmed(err)
	}
	return nil
}

func runDisable(ctx context.Context, o *enableOptions, client *apiclient.Client, out *output.Printer) error {
	files, err := o.files(ctx, client)
	if err != nil {
		return err
	}
	on := slices.DeleteFunc(slices.Clone(files), func(f pluginFile) bool { return f.def.Disabled })
	if len(on) == 0 {
		return o.done(out, files, false, false)
	}

	p, err := client.Plugin(ctx, o.id)
	if err != nil {
		return command.ExplainPlugin(ctx, client, err, o.id)
	}
	claims, err := client.Claims(ctx, apiclient.ClaimFilter{Plugin: o.id})
	if err != nil {
		return err
	}
	if p.Staged > 0 || len(claims) > 0 {
		return &api.Error{
			Code: api.CodeRefused,
			Message: fmt.Sprintf("the plugin is in use: %s on this host, %s",
				output.Count(p.Staged, "volume"), output.Count(len(claims), "claim")),
			Hint: suggest.Command("volctl claim list --plugin %s", o.id),
		}
	}

	if err := setEnabled(on, false); err != nil {
		return err
	}
	return o.done(out, on, false, true)
}

// done prints the result.
func (o *enableOptions) done(out *output.Printer, files []pluginFile, on, changed bool) error {
	r := switched{ID: o.id, Enabled: on, Changed: changed}
	for _, f := range files {
		r.Files = append(r.Files, f.path)
	}

	word := "disabled"
	if on {
		word = "enabled"
	}
	said := word + " plugin " + output.QuotedList([]string{o.id})
	switch {
	case !changed:
		said = "plugin " + output.QuotedList([]string{o.id}) + " is " + word + " already"
	case on && o.file != "" && filepath.Base(filepath.Dir(files[0].path)) != pluginDirName:
		said += "; then: " + suggest.Command("volctl plugin register %s", o.file)
	case on:
		said += "; then: " + suggest.Command("volctl plugin status %s", o.id)
	}
	return out.Print(r, []string{o.id}, func(b *bytes.Buffer) error {
		b.WriteString(said + "\n")
		return nil
	})
}

// files returns the files that define the plugin.
func (o *enableOptions) files(ctx context.Context, client *apiclient.Client) ([]pluginFile, error) {
	paths := []string{o.file}
	if o.file == "" {
		p, err := o.await(ctx, client)
		if err != nil {
			return nil, command.ExplainPlugin(ctx, client, err, o.id)
		}
		if paths, err = filesOf(p); err != nil {
			return nil, err
		}
	}

	var files []pluginFile
	for _, path := range paths {
		f, err := readPluginFile(path)
		if err != nil {
			return nil, err
		}
		if f.def.ID != o.id {
			return nil, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("%s defines plugin %q", path, f.def.ID), Hint: suggest.Command("volctl plugin enable %s --file=%s", f.def.ID, path)}
		}
		files = append(files, f)
	}
	return files, nil
}

// noticed is the time within which the agent notices a new plugin file. It is longer than the pause
// for which the agent waits for the end of changes.
const noticed = 4 * time.Second

// await returns the plugin. The agent may not have noticed a new file yet, so await asks again.
func (o *enableOptions) await(ctx context.Context, client *apiclient.Client) (*api.Plugin, error) {
	ctx, cancel := context.WithTimeout(ctx, command.ReadTimeout)
	defer cancel()

	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	end := time.After(noticed)
	for {
		p, err := client.Plugin(ctx, o.id)
		if !command.IsNotFound(err) {
			return p, err
		}

		select {
		case <-tick.C:
		case <-end:
			return nil, err
		case <-ctx.Done():
			return nil, err
		}
	}
}

// filesOf returns the paths of the files of a plugin.
func filesOf(p *api.Plugin) ([]string, error) {
	var paths []string
	for _, part := range p.Parts {
		switch {
		case part.Registered:
			return nil, &api.Error{Code: api.CodeRefused, Message: "the plugin was registered at run time, and has no file", Hint: suggest.Command("volctl plugin deregister %s", p.ID)}
		case part.File != "" && !slices.Contains(paths, part.File):
			paths = append(paths, part.File)
		}
	}
	if len(paths) == 0 {
		return nil, &api.Error{Code: api.CodeRefused, Message: "the plugin has no file", Hint: suggest.Command("volctl plugin status %s", p.ID)}
	}
	return paths, nil
}
