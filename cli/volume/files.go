package volume

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

// volumeFile is a volume file for the commands register and validate.
type volumeFile struct {
	plugin   string // the value of --plugin; if empty, the driver decides
	docs     []spec.Document
	specs    []api.VolumeSpec
	warnings map[string][]string // warnings by volume id
}

func (f *volumeFile) flag(a *command.App, cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.plugin, "plugin", "", "`PLUGIN` of PersistentVolumes and Nomad volumes, if their driver does not identify it")
	command.CompleteFlag(a, cmd, "plugin", command.PluginIDs)
}

// read parses a file, or stdin if the file is "-".
func (f *volumeFile) read(ctx context.Context, a *command.App, file string) error {
	if f.plugin != "" {
		if err := command.CheckPluginID(f.plugin); err != nil {
			return err
		}
	}

	name, data, err := a.ReadFile(ctx, file)
	if err != nil {
		return err
	}
	if f.docs, err = spec.Read(name, data); err != nil {
		return command.Failed(err, "read the volume file")
	}

	f.warnings = map[string][]string{}
	for _, d := range f.docs {
		if d.From == spec.Own && f.plugin != "" {
			return command.Usage("remove --plugin", "volume %q names its plugin itself; --plugin is for volumes that Kubernetes or Nomad describe", d.Spec.ID)
		}
		f.specs = append(f.specs, d.Spec)
		f.warnings[d.Spec.ID] = d.Warnings
	}

	return nil
}

// warn shows the warnings to a person. It does so even if the command fails later. For a program,
// the warnings are part of the result.
func (f *volumeFile) warn(out *output.Printer) {
	if !out.Human() {
		return
	}
	for _, d := range f.docs {
		for _, w := range d.Warnings {
			out.Note("warning: volume %q: %s", d.Spec.ID, w)
		}
	}
}

// settle adds the settings that files of Kubernetes and Nomad lack. It finds the plugin of each
// volume. If a volume is already registered, settle takes the other missing settings from the
// registered volume. It changes nothing in the agent.
func (f *volumeFile) settle(ctx context.Context, client *apiclient.Client) error {
	var plugins []api.Plugin
	var errs []error
	for i, d := range f.docs {
		if d.From == spec.Own {
			continue
		}

		known, err := client.Volume(ctx, d.Spec.ID)
		if err != nil && !command.IsNotFound(err) {
			return command.Failed(err, "look for volume %q", d.Spec.ID)
		}

		s := &f.specs[i]
		if err == nil {
			keep(d, s, known.Spec)
			if f.plugin == "" && known.Driver != "" && known.Driver == d.Driver {
				s.PluginID = known.Spec.PluginID
				continue
			}
		}

		if plugins == nil {
			if plugins, err = client.Plugins(ctx); err != nil {
				return command.Failed(err, "find the plugin of volume %q", d.Spec.ID)
			}
		}

		if s.PluginID, err = pluginFor(d, f.plugin, plugins); err != nil {
			errs = append(errs, command.Failed(err, "find the plugin of volume %q", d.Spec.ID))
		}
	}

	return command.Join(errs)
}

// keep copies settings to the spec s. It takes them from known, which is the registered volume, and
// copies only settings that a file in a foreign format cannot express.
func keep(d spec.Document, s *api.VolumeSpec, known api.VolumeSpec) {
	if len(s.Secrets) == 0 {
		s.Secrets = known.Secrets
	}
	s.Reclaim = known.Reclaim
	s.Boot, s.Takeover = known.Boot, known.Takeover
	if o := known.MountOptions; d.FlagsHidden && o != nil {
		kept := api.MountOptions{MountFlags: o.MountFlags}
		if s.MountOptions != nil {
			kept.FSType = s.MountOptions.FSType
		}
		s.MountOptions = &kept
	}
}

// pluginFor returns the id of the plugin for a volume from a file in a foreign format. The argument
// asked is the value of --plugin. If it is not empty, pluginFor returns it, unless that plugin has
// a different driver. Otherwise, it finds the plugin with the driver in the file. If several
// plugins have this driver, it returns the plugin whose id is in the file.
func pluginFor(d spec.Document, asked string, plugins []api.Plugin) (string, error) {
	var same, silent []string
	all := make([]string, len(plugins))
	for i, p := range plugins {
		all[i] = fmt.Sprintf("%q (%s)", p.ID, p.Provider)
		switch p.Provider {
		case d.Driver:
			same = append(same, p.ID)
		case "":
			silent = append(silent, p.ID)
			all[i] = fmt.Sprintf("%q (has not reported its driver yet)", p.ID)
		default:
			if p.ID == asked && d.Driver != "" {
				return "", &api.Error{Code: api.CodeRefused, Message: fmt.Sprintf("plugin %q has the driver %q, but the volume needs %q", p.ID, p.Provider, d.Driver)}
			}
		}
	}

	elsewhere := d.Spec.PluginID
	switch {
	case asked != "":
		return asked, nil
	case d.Driver == "", slices.Contains(same, elsewhere):
		return elsewhere, nil
	case len(same) == 1:
		return same[0], nil
	case len(same) > 1:
		return "", command.Usage("name one: --plugin "+suggest.Quote(same[0]), "several plugins have the driver %q: %s", d.Driver, output.QuotedList(same))
	case slices.Contains(silent, elsewhere):
		return elsewhere, nil
	}

	there := "there is no plugin"
	if len(all) > 0 {
		there = "there are " + output.Joined(", ", all...)
	}

	return "", &api.Error{
		Code: api.CodeNotFound, Message: fmt.Sprintf("no plugin has the driver %q; %s", d.Driver, there),
		Hint: "write a plugin file (volctl plugin init), or name the plugin: --plugin PLUGIN",
	}
}
