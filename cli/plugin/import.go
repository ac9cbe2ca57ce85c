package plugin

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/manifest"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

type importOptions struct {
	file, dir   string
	set, secret []string
	manifest    manifest.Options
}

func newImport(a *command.App) *cobra.Command {
	var o importOptions
	cmd := &cobra.Command{
		Use: "import FILE|-", Short: "Make plugin files from a driver's manifest for Kubernetes or Swarm",
		Long: `Make plugin files from the manifest of a CSI driver (- is stdin). The manifest is YAML for
Kubernetes, with a DaemonSet, Deployment or StatefulSet and the ConfigMaps and Secrets that it
needs. Or it is the config.json of a managed plugin of docker. Render templates of Helm and
Kustomize first.

The files have enabled: false, so the agent does not start the plugin. The command prints the values
and files that are still missing, the facts to check, and the content that it left out. It writes
all files or none, and does not overwrite a file. It refuses (4) an id that a file in DIR or a
plugin of the agent has, and a driver that needs the API of Kubernetes. It neither prints nor writes
the value of a secret.`,
		Example: "  volctl plugin import nfs.yaml\n  volctl plugin import driver.yaml --dir /etc/volagent/plugins.d --set-secret API_TOKEN=/etc/volagent/secrets/token",
		Args:    command.Exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			o.file = args[0]
			if err := o.check(); err != nil {
				return err
			}

			return a.Do(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
				name, data, err := a.ReadFile(ctx, o.file)
				if err != nil {
					return err
				}

				o.manifest.File = name
				return runImport(ctx, o, data, client, out)
			})
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.dir, "dir", ".", "`DIR` for the plugin files")
	f.StringVar(&o.manifest.ID, "id", "", "`ID` of the plugin; by default from the name of the driver")
	f.StringVar(&o.manifest.Runtime, "runtime", "podman", "`NAME` of the program that runs the container: podman or docker")
	f.StringArrayVar(&o.manifest.Containers, "container", nil, "`NAME` of the driver's container, or WORKLOAD/NAME; may be repeated for the node and the controller")
	f.StringArrayVar(&o.set, "set", nil, "`NAME=VALUE`: a value that the manifest does not contain; may be repeated")
	f.StringArrayVar(&o.secret, "set-secret", nil, "`NAME=FILE`: the file that holds the secret of a variable, or the directory for a volume; may be repeated")
	f.BoolVar(&o.manifest.WithoutKubernetes, "without-kubernetes", false, "import the driver although it seems to need the API of Kubernetes")

	return cmd
}

// check parses the flags. No error contains the value of --set-secret, because it may be the secret
// itself.
func (o *importOptions) check() (err error) {
	if err := command.OneOf("runtime", o.manifest.Runtime, []string{"podman", "docker"}); err != nil {
		return err
	}
	if o.manifest.Values, err = command.KeyValues("set", o.set); err != nil {
		return err
	}
	if o.manifest.Secrets, err = command.KeyValues("set-secret", o.secret); err != nil {
		return err
	}

	for name, path := range o.manifest.Secrets {
		if !filepath.IsAbs(path) {
			return command.Usage("", "--set-secret %s needs the absolute path of a file; a secret itself is refused", name)
		}
	}

	return nil
}

func runImport(ctx context.Context, o importOptions, data []byte, client *apiclient.Client, out *output.Printer) error {
	r, err := manifest.Import(data, o.manifest)
	if err != nil {
		return command.Failed(o.explain(err), "import %q", o.manifest.File)
	}
	if err := o.checkID(ctx, r, client); err != nil {
		return command.Failed(err, "import %q", o.manifest.File)
	}

	files := make([]command.NewFile, len(r.Files))
	paths := make([]string, len(r.Files))
	for i, f := range r.Files {
		paths[i] = filepath.Join(o.dir, f.Name)
		files[i] = command.NewFile{Name: f.Name, Text: f.Text}
	}
	if err := command.WriteAll(o.dir, files); err != nil {
		return command.Failed(err, "import %q", o.manifest.File)
	}

	return out.Print(imported(r, paths), paths, func(w *bytes.Buffer) error {
		importScreen(w, out, r, paths)
		return nil
	})
}

// explain adds the code and the next step to an error of the import.
func (o importOptions) explain(err error) error {
	var e *manifest.Error
	if !errors.As(err, &e) {
		return err
	}

	out := &api.Error{Code: api.CodeInvalid, Message: e.Message}
	switch e.Kind {
	case manifest.Template:
		out.Hint = "render it first, with helm template or kubectl kustomize, and import the result"
	case manifest.Choice:
		out.Hint = suggest.Command("volctl plugin import %s --container NAME", o.file)
	case manifest.Kubernetes:
		out.Code = api.CodeRefused
		out.Hint = "if the driver's documentation says that it works without Kubernetes: " + suggest.Command("volctl plugin import %s --without-kubernetes", o.file)
	case manifest.SecretArgument:
		out.Code = api.CodeRefused
		out.Hint = "if the driver also reads the variable or a file, remove the argument from the manifest"
	}

	return out
}

// asking is the time limit of the question to the agent for its plugins.
const asking = 5 * time.Second

// checkID refuses an id that another plugin has. The agent need not run.
func (o importOptions) checkID(ctx context.Context, r *manifest.Result, client *apiclient.Client) error {
	another := suggest.Command("volctl plugin import %s --id ANOTHER-ID", o.file)
	taken, err := fileOf(o.dir, r.ID)
	if err != nil {
		return err
	}
	if taken != "" {
		return &api.Error{Code: api.CodeRefused, Message: "plugin " + output.QuotedList([]string{r.ID}) + " exists already, in " + taken, Hint: another}
	}

	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	plugins, err := client.Plugins(ctx)
	if err != nil {
		r.Warnings = append(r.Warnings, "the agent could not be asked whether it has a plugin "+output.QuotedList([]string{r.ID})+" already")
		return nil
	}

	if slices.ContainsFunc(plugins, func(p api.Plugin) bool { return p.ID == r.ID }) {
		return &api.Error{Code: api.CodeRefused, Message: "the agent has a plugin " + output.QuotedList([]string{r.ID}) + " already", Hint: another}
	}

	return nil
}

// fileOf returns the plugin file in a directory that defines a plugin. It returns "" if there is
// none.
func fileOf(dir, id string) (string, error) {
	paths, err := filepath.Glob(filepath.Join(globLiteral.Replace(dir), "*.yaml"))
	if err != nil {
		return "", err
	}

	for _, path := range paths {
		// An unreadable file cannot be compared. The write fails if it has the same name.
		text, err := readBounded(path)
		if err == nil && manifest.IDOf(text) == id {
			return path, nil
		}
	}

	return "", nil
}

// globLiteral escapes the characters with a meaning in patterns of filepath.Glob.
var globLiteral = strings.NewReplacer("\\", "\\\\", "*", "\\*", "?", "\\?", "[", "\\[")

// readBounded reads a plugin file. It returns an error for other objects, such as a FIFO, because a
// read of one may never end.
func readBounded(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > manifest.MaxFile {
		return nil, errors.New("not a plugin file")
	}

	return os.ReadFile(path)
}

// importResult is the outcome of an import for programs.
type importResult struct {
	ID       string         `json:"id"`
	Files    []importFile   `json:"files"`
	Required []importValue  `json:"required"`
	Secrets  []importSecret `json:"secrets"`
	Make     []string       `json:"make"`
	Images   []string       `json:"images_without_digest"`
	Warnings []string       `json:"warnings"`
	Sidecars []string       `json:"sidecars"`
	LeftOut  []string       `json:"left_out"`
}

type importFile struct {
	Path      string `json:"path"`
	Type      string `json:"type,omitempty"`
	Container string `json:"container"`
}

type importValue struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

type importSecret struct {
	Name   string `json:"name"`
	Path   string `json:"path"`
	Source string `json:"source"`
}

func imported(r *manifest.Result, paths []string) importResult {
	list := func(items []string) []string { return append([]string{}, items...) } // empty lists are [] in JSON
	out := importResult{
		ID: r.ID, Files: []importFile{}, Required: []importValue{}, Secrets: []importSecret{}, Make: list(r.Make), Images: list(r.Images),
		Warnings: list(r.Warnings), Sidecars: list(r.Sidecars), LeftOut: list(r.LeftOut),
	}
	for i, f := range r.Files {
		out.Files = append(out.Files, importFile{Path: paths[i], Type: f.Definition.Type, Container: f.Container})
	}
	for _, v := range r.Required {
		out.Required = append(out.Required, importValue(v))
	}
	for _, s := range r.Secrets {
		out.Secrets = append(out.Secrets, importSecret{Name: s.Variable, Path: s.Path, Source: s.Source})
	}

	return out
}

// importScreen writes the outcome of an import for a person.
func importScreen(w *bytes.Buffer, out *output.Printer, r *manifest.Result, paths []string) {
	block := func(title string, lines []string) {
		if len(lines) == 0 {
			return
		}
		w.WriteString("\n" + title + "\n")
		for _, line := range lines {
			out.Line(w, "  ", line)
		}
	}

	out.Line(w, "", "wrote "+strings.Join(paths, " and ")+", with enabled: false")
	missing := make([]string, 0, len(r.Required)+len(r.Secrets)+len(r.Make))
	for _, v := range r.Required {
		missing = append(missing, "value "+v.Name+" (--set "+v.Name+"=VALUE): "+v.Reason)
	}
	for _, s := range r.Secrets {
		missing = append(missing, "secret file "+s.Path+" with mode 0600 (--set-secret "+s.Variable+"=FILE for another path): "+s.Source)
	}
	block("Still missing:", append(missing, r.Make...))

	warnings := slices.Clone(r.Warnings)
	for _, image := range r.Images {
		warnings = append(warnings, "the image "+image+" has no digest, so it can change")
	}
	block("Check:", warnings)
	block("Sidecars that the agent replaces:", r.Sidecars)
	block("Left out:", r.LeftOut)

	next := "volctl plugin list"
	if !inPluginDir(paths[0]) {
		next = suggest.Command("volctl plugin register %s", paths[0])
	}
	if len(paths) > 1 && !inPluginDir(paths[0]) {
		next += "; " + suggest.Command("volctl plugin register %s", paths[1])
	}
	w.WriteString("\n")
	out.Line(w, "", "edit "+map[bool]string{true: "the file", false: "the files"}[len(paths) == 1]+", set enabled: true, then: "+next)
}
