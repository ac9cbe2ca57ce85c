package recipe

import (
	"fmt"
	"path"
	"strings"

	"github.com/volagent/volagent/agent/pluginfile"
)

// Input contains the choices of a user for a plugin file.
type Input struct {
	Runtime   string            // podman or docker
	Pull      bool              // whether the agent pulls a missing image
	Values    map[string]string // checked with CheckValue
	Secrets   map[string][]byte // cleaned with CleanSecret
	SecretDir string            // the directory of the files with secrets, an absolute path
}

// File is a file that must be readable only by its owner.
type File struct {
	Path    string
	Content []byte
}

// Output contains the files for a driver.
type Output struct {
	Plugin string // the plugin file
	Files  []File // secrets, and configuration files that may contain secrets

	// MissingValues and MissingSecrets name the required values and secrets that were not given.
	MissingValues, MissingSecrets []string
}

// secretPath returns the path of the file with a secret or a configuration.
func (r *Recipe) secretPath(dir, name string) string { return path.Join(dir, r.Name+"-"+name) }

// Render returns the files for a driver. The plugin file has enabled: false. Render returns an error if a
// value makes the plugin file invalid, for example a value with an unknown variable.
func (r *Recipe) Render(in Input) (Output, error) {
	var out Output
	for _, v := range r.Values {
		if v.Required && in.Values[v.Name] == "" {
			out.MissingValues = append(out.MissingValues, v.Name)
		}
	}

	// A secret of a configuration file has no file of its own.
	for _, s := range r.Secrets {
		content, given := in.Secrets[s.Name]
		switch {
		case given && (s.Volume || r.readsFile(s.Name)):
			out.Files = append(out.Files, File{r.secretPath(in.SecretDir, s.Name), content})
		case !given && s.Required && !s.Volume:
			out.MissingSecrets = append(out.MissingSecrets, s.Name)
		}
	}

	for _, c := range r.Configs {
		text := expand(c.Text, r.contents(in), configLine(c.Format), "")
		out.Files = append(out.Files, File{r.secretPath(in.SecretDir, c.Name), []byte(text)})
	}

	out.Plugin = r.comments(in) + "\n" + expand(r.Plugin, r.paths(in), yamlLine, "# ")
	if !in.Pull {
		out.Plugin = strings.Replace(out.Plugin, "pull: never\n", "pull: never   # missing: the agent pulls it\n", 1)
	}
	if r.Fence.Value != "" {
		out.Plugin += r.fence()
	}

	file := r.Name + ".yaml"
	id, def, err := pluginfile.Parse(file, []byte(out.Plugin))
	if err != nil {
		return Output{}, err
	}
	if id != r.Name || !def.Disabled {
		return Output{}, fmt.Errorf("%s: the recipe is wrong: its plugin file is %q, and must be disabled", file, id)
	}
	return out, nil
}

// readsFile reports whether the plugin file names the file of a secret.
func (r *Recipe) readsFile(secret string) bool {
	return strings.Contains(r.Plugin, "{{secret."+secret+"}}")
}

// paths finds the variables of the plugin file. A secret stands for the path of its file.
func (r *Recipe) paths(in Input) lookup {
	return func(name string) (string, bool) {
		if secret, ok := strings.CutPrefix(name, "secret."); ok {
			_, given := in.Secrets[secret]
			return r.secretPath(in.SecretDir, secret), given
		}
		if config, ok := strings.CutPrefix(name, "config."); ok {
			return r.secretPath(in.SecretDir, config), true
		}
		return r.lookup(in, name)
	}
}

// contents finds the variables of a configuration file. A secret stands for its content.
func (r *Recipe) contents(in Input) lookup {
	return func(name string) (string, bool) {
		if secret, ok := strings.CutPrefix(name, "secret."); ok {
			content, given := in.Secrets[secret]
			if !given {
				return placeholder(secret), false
			}
			return string(content), true
		}
		return r.lookup(in, name)
	}
}

// lookup finds the variables that all templates have.
func (r *Recipe) lookup(in Input, name string) (string, bool) {
	switch name {
	case "id":
		return r.Name, true
	case "image":
		if in.Values[name] != "" { // a recipe whose makers publish no fixed version
			return in.Values[name], true
		}
		return r.Image, true
	case "runtime":
		return in.Runtime, true
	case "pull":
		if in.Pull {
			return "missing", true
		}
		return "never", true
	}

	v, _ := r.value(name)
	switch given := in.Values[name]; {
	case given != "":
		return given, true
	case v.Default != "":
		return v.Default, true
	case v.Required:
		return placeholder(name), false
	case v.Example != "":
		return v.Example, false
	default:
		return strings.ToUpper(name), false
	}
}
