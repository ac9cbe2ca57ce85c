package plugin

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/recipe"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

// written is the result of the command init.
type written struct {
	File           string   `json:"file"`
	Secrets        []string `json:"secrets,omitempty"` // the files with secrets, and configuration files
	MissingValues  []string `json:"missing_values,omitempty"`
	MissingSecrets []string `json:"missing_secrets,omitempty"`
	Next           string   `json:"next"`
}

// writeRecipe writes the files of a driver.
func writeRecipe(ctx context.Context, o initOptions, r *recipe.Recipe, out *output.Printer) error {
	in, err := o.input(ctx, r)
	if err != nil {
		return command.Failed(err, "write the plugin file of %s", r.Name)
	}
	result, err := r.Render(in)
	if err != nil {
		return command.Failed(&api.Error{Code: api.CodeInvalid, Message: err.Error()}, "write the plugin file of %s", r.Name)
	}

	if o.file == "-" {
		return out.Write([]byte(result.Plugin))
	}
	if err := o.write(result); err != nil {
		return err
	}

	w := written{File: o.file, MissingValues: result.MissingValues, MissingSecrets: result.MissingSecrets, Next: o.next(r.Name)}
	for _, f := range result.Files {
		w.Secrets = append(w.Secrets, f.Path)
	}
	return out.Print(w, []string{o.file}, func(b *bytes.Buffer) error {
		b.WriteString(w.words(r.Name))
		return nil
	})
}

// words describes the result for a person.
func (w *written) words(name string) string {
	var b strings.Builder
	for _, path := range w.Secrets {
		b.WriteString("wrote " + output.Printable(path) + " (mode 0600)\n")
	}

	var missing []string
	if len(w.MissingValues) > 0 {
		missing = append(missing, "the values "+strings.Join(w.MissingValues, ", ")+" (placeholders "+"<FILL-IN-…>)")
	}
	if len(w.MissingSecrets) > 0 {
		missing = append(missing, "the secrets "+strings.Join(w.MissingSecrets, ", "))
	}

	said := "wrote " + output.Printable(w.File) + " (disabled)"
	if len(missing) > 0 {
		said += "; fill in " + strings.Join(missing, " and ")
	} else {
		said += "; look at it"
	}
	b.WriteString(said + ", then: " + w.Next + "\n")
	return b.String()
}

// next returns the command to run after the file is complete.
func (o *initOptions) next(id string) string {
	if inPluginDir(o.file) {
		return suggest.Command("volctl plugin enable %s", id)
	}
	return suggest.Command("volctl plugin enable %s --file=%s", id, o.file)
}

// input checks the flags, and reads the secrets.
func (o *initOptions) input(ctx context.Context, r *recipe.Recipe) (recipe.Input, error) {
	in := recipe.Input{Pull: o.pull, Values: map[string]string{}, Secrets: map[string][]byte{}}
	var err error
	if in.Runtime, err = o.containerRuntime(); err != nil {
		return in, err
	}
	if in.SecretDir, err = o.secrets(); err != nil {
		return in, err
	}

	for _, pair := range o.set {
		name, value, ok := strings.Cut(pair, "=")
		_, twice := in.Values[name]
		switch {
		case !ok:
			return in, command.Usage("", "--set needs NAME=VALUE")
		case twice:
			return in, command.Usage("", "--set %s is given twice", name)
		}
		if err := r.CheckValue(name, value); err != nil {
			return in, command.Usage(o.hint(r, name, r.ValueNames()), "--set %s: %s", name, err)
		}
		in.Values[name] = value
	}

	return in, o.secretInput(ctx, r, in.Secrets)
}

// secretInput reads the secrets. Its errors never contain a secret.
func (o *initOptions) secretInput(ctx context.Context, r *recipe.Recipe, to map[string][]byte) error {
	if len(o.setSecret) > 0 && o.file == "-" {
		return command.Usage("name a FILE", "--set-secret writes files, and the plugin file is stdout")
	}

	stdin := false
	for _, pair := range o.setSecret {
		name, file, ok := strings.Cut(pair, "=")
		_, twice := to[name]
		switch {
		case !ok || file == "":
			return command.Usage("", "--set-secret needs NAME=FILE, or NAME=- for stdin")
		case twice:
			return command.Usage("", "--set-secret %s is given twice", name)
		case file == "-" && stdin:
			return command.Usage("", "only one secret can come from stdin")
		}
		stdin = stdin || file == "-"

		// An unknown name is refused before anything is read.
		if _, err := r.CleanSecret(name, []byte("x")); err != nil {
			return command.Usage(o.hint(r, name, r.SecretNames()), "--set-secret %s: %s", name, err)
		}
		content, err := o.read(ctx, file)
		if err != nil {
			// The user may have typed the secret itself in place of a file, so the error omits it.
			return command.Usage("", "--set-secret %s: cannot read the file: %s", name, reason(err))
		}
		clean, err := r.CleanSecret(name, content)
		if err != nil {
			return command.Usage("", "--set-secret %s: %s", name, err)
		}
		to[name] = clean
	}
	return nil
}

// reason returns the reason of an error about a file, without the name of the file.
func reason(err error) string {
	var path *fs.PathError
	var e *api.Error
	switch {
	case errors.As(err, &path):
		return path.Err.Error()
	case errors.As(err, &e):
		return e.Message
	default:
		return "the file cannot be read"
	}
}

// hint proposes the name that the user may have meant.
func (o *initOptions) hint(r *recipe.Recipe, name string, names []string) string {
	if _, known := r.CleanSecret(name, []byte("x")); known == nil {
		return suggest.Command("volctl plugin init %s --set-secret=%s=FILE", r.Name, name)
	}
	if near := spec.Near(name, names); len(near) > 0 {
		return "did you mean " + near[0] + "?"
	}
	return suggest.Command("volctl plugin init %s - shows its values and secrets", r.Name)
}

// write writes the secrets and then the plugin file. It overwrites nothing. If it fails, it removes the
// files that it has written.
func (o *initOptions) write(result recipe.Output) (err error) {
	another := suggest.Command("volctl plugin init %s ANOTHER-FILE", o.name)
	if _, statErr := os.Lstat(o.file); statErr == nil {
		return exists(o.file, another)
	}

	var made []string
	defer func() {
		if err == nil {
			return
		}
		for _, path := range made {
			err = errors.Join(err, os.Remove(path))
		}
	}()

	for _, f := range result.Files {
		if err := makeSecretDir(filepath.Dir(f.Path)); err != nil {
			return cannotWrite(f.Path, err)
		}
		if err := writeNew(f.Path, f.Content, 0o600); err != nil {
			if errors.Is(err, fs.ErrExist) {
				return exists(f.Path, "remove it, or choose another directory with --secret-dir")
			}
			return cannotWrite(f.Path, err)
		}
		made = append(made, f.Path)
	}

	if err := writeNew(o.file, []byte(result.Plugin), 0o644); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return exists(o.file, another)
		}
		return cannotWrite(o.file, err)
	}
	return nil
}

// makeSecretDir makes a directory that only its owner can enter, unless it exists.
func makeSecretDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func exists(file, hint string) error {
	return command.Failed(&api.Error{Code: api.CodeRefused, Message: "the file exists", Hint: hint}, "write %q", file)
}

func cannotWrite(file string, err error) error {
	var path *fs.PathError
	if !errors.As(err, &path) {
		return command.Failed(err, "write %q", file)
	}
	if errors.Is(err, fs.ErrPermission) {
		return command.Failed(&api.Error{Code: api.CodePermission, Message: path.Err.Error()}, "write %q", file)
	}
	return command.Failed(path.Err, "write %q", file)
}

// writeNew writes a new file. It leaves no incomplete file.
func writeNew(file string, content []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}

	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(file))
	}
	return nil
}
