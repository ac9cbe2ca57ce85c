package class

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/bytesize"
)

func newStatus(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use: "status [ID]", Short: "Show a class, and the reason if it cannot be used",
		Long: `Show a class: its plugin, its limits, the volumes that were created with it, and the mistake in its
file if there is one. A unique prefix of the id is enough. Without an id, show all classes.`,
		Args: command.Between(0, "ID"), ValidArgsFunction: command.CompleteArg(a, command.ClassIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Read(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
				if len(args) == 0 {
					return runStatuses(ctx, client, out)
				}
				return runStatus(ctx, args[0], client, out)
			})
		},
	}
}

func runStatus(ctx context.Context, id string, client *apiclient.Client, out *output.Printer) error {
	c, err := command.FindClass(ctx, client, id)
	if err != nil {
		return command.Failed(err, "show class %q", id)
	}
	return out.Print(c, []string{c.Spec.ID}, func(w *bytes.Buffer) error { return statusScreen(w, out, c) })
}

func runStatuses(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	classes, err := client.Classes(ctx)
	if err != nil {
		return command.Failed(err, "show classes")
	}

	ids := make([]string, len(classes))
	for i, c := range classes {
		ids[i] = c.Spec.ID
	}

	return out.Print(classes, ids, func(w *bytes.Buffer) error {
		for i := range classes {
			if i > 0 {
				w.WriteByte('\n')
			}
			if err := statusScreen(w, out, &classes[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// shownVolumes is the maximum number of volumes on the screen of a class.
const shownVolumes = 10

func statusScreen(w *bytes.Buffer, out *output.Printer, c *api.Class) error {
	good := c.Problem == "" && c.PluginState == api.PluginReady
	out.Headline(w, "", out.Mark(output.GoodOr(good)), output.Dash(c.Spec.ID)+"  "+state(c), c.Spec.Note)

	var lines []output.Field
	add := func(name string, facts ...string) {
		if strings.Join(facts, "") != "" {
			lines = append(lines, output.Named(name, facts...))
		}
	}

	if c.Problem != "" {
		add("Problem", c.Problem)
	}
	add("File", place(c))

	name := made(c)
	if name != "" {
		driver := ""
		if c.Spec.Driver != "" {
			driver = "driver " + c.Spec.Driver
		}
		add("Plugin", name, driver)
		add("Size", sizes(c.Spec.Size))
		add("Modes", modes(c.Spec.Capabilities))
		add("Fixes", fixed(&c.Spec))
		add("Allows", strings.Join(c.Spec.Allow, ", "))
	}

	count := output.Count(len(c.Volumes), "volume")
	add("Volumes", count, strings.Join(c.Volumes[:min(len(c.Volumes), shownVolumes)], " "))
	for _, warning := range c.Warnings {
		add("Warning", warning)
	}

	return out.Fields(w, "  ", lines)
}

// sizes describes the limits for the size of a volume.
func sizes(s api.ClassSize) string {
	var parts []string
	for _, one := range []struct {
		word  string
		bytes int64
	}{{"default", s.Default}, {"at least", s.Min}, {"at most", s.Max}} {
		if one.bytes > 0 {
			parts = append(parts, one.word+" "+bytesize.Format(one.bytes))
		}
	}
	return strings.Join(parts, ", ")
}

// modes describes the capabilities of which a request selects some.
func modes(all []api.Capability) string {
	texts := make([]string, len(all))
	for i, c := range all {
		texts[i] = c.AccessMode + ", " + c.AttachmentMode
	}
	return strings.Join(texts, "; ")
}

// fixed lists the fields of a class with their values. It shows only the names of secrets.
func fixed(s *api.ClassSpec) string {
	var parts []string
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+": "+value)
		}
	}

	add("name", s.NamePrefix)
	if o := s.MountOptions; o != nil {
		add(spec.FieldFSType, o.FSType)
		add(spec.FieldMountFlags, strings.Join(o.MountFlags, ","))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Parameters)) {
		add(spec.FieldParameters+"."+name, s.Parameters[name])
	}
	for _, name := range slices.Sorted(maps.Keys(s.Mutable)) {
		add(spec.FieldMutable+"."+name, s.Mutable[name])
	}
	if t := s.Topology; t != nil {
		add(spec.FieldTopology, output.Places(slices.Concat(t.Required, t.Preferred)))
	}
	if len(s.Secrets) > 0 {
		add(spec.FieldSecrets, strings.Join(slices.Sorted(maps.Keys(s.Secrets)), " "))
	}
	add(spec.FieldReclaim, s.Reclaim)
	add(spec.FieldScope, s.Scope)
	return strings.Join(parts, ", ")
}
