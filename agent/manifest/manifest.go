// Package manifest turns the manifest of a CSI driver for another orchestrator into plugin files. It
// reads the objects of a Kubernetes manifest, or the config.json of a managed plugin of docker. It
// does not access the host, and it never returns the value of a secret.
//
// The way of a Kubernetes manifest:
//
//	bytes → objects → the driver's container of each workload → the need for Kubernetes' API
//	                                                          → environment, arguments, mounts
//	                                                          → plugin files, and open questions
package manifest

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// MaxFile is the maximum size of a manifest, in bytes.
const MaxFile = 1 << 20

// Options are the answers to the questions that a manifest leaves open.
type Options struct {
	File    string // name of the manifest, for messages
	ID      string // id of the plugin; if it is empty, it is derived from the name of the driver
	Runtime string // plugin.RuntimePodman or plugin.RuntimeDocker

	// Containers names the driver's containers, as CONTAINER or WORKLOAD/CONTAINER. If it is
	// empty, the package finds them.
	Containers []string

	// Values sets required values by name.
	Values map[string]string

	// Secrets gives the path of a secret's file on the host, by the name of the variable that
	// takes the secret. For a volume that holds secrets, it gives the path of the directory, by the
	// name of the volume.
	Secrets map[string]string

	// WithoutKubernetes imports a driver although it has signs that it needs the API of Kubernetes.
	WithoutKubernetes bool
}

// Result is the outcome of an import. Its texts are for people, in English, one line each.
type Result struct {
	ID    string
	Files []File

	Sidecars []string // containers that the agent replaces
	Required []Value  // values that a person must still set in the files
	Secrets  []Secret // files with secrets that must exist on the host
	Make     []string // other files and directories that must exist on the host
	Images   []string // images that are named without a digest
	LeftOut  []string // content of the manifest that has no effect here
	Warnings []string // facts that a person must check
}

// File is one plugin file.
type File struct {
	Name      string // name of the file, without a directory
	Container string // its origin, as WORKLOAD/CONTAINER; for a managed plugin, the name of the manifest
	Text      []byte
	// Definition is the content of Text. Missing values have a placeholder.
	Definition *plugin.Definition
}

// Value is a value that the manifest does not contain.
type Value struct{ Name, Reason string }

// Secret is a file with a secret. It must have mode 0600.
type Secret struct {
	Variable string // name of the variable or volume that takes the secret
	Path     string // path of the file on the host
	Source   string // origin of the secret in the manifest
}

// Import turns a manifest into plugin files. An error is an *Error.
func Import(data []byte, opts Options) (*Result, error) {
	opts.Runtime = cmp.Or(opts.Runtime, plugin.RuntimePodman)
	opts.File = clean(cmp.Or(opts.File, "manifest"))
	if opts.ID != "" {
		if err := volume.CheckPluginID(opts.ID); err != nil {
			return nil, invalid("%s", err)
		}
	}
	if len(data) > MaxFile {
		return nil, invalid("%s has more than %d bytes", opts.File, MaxFile)
	}

	config, err := swarmConfig(data)
	if err != nil {
		return nil, err
	}
	if config != nil {
		return importSwarm(*config, opts)
	}

	objects, err := decode(opts.File, data)
	if err != nil {
		return nil, err
	}

	return importKubernetes(objects, opts)
}

// part is one plugin file that is not written yet.
type part struct {
	kind    string // value of the key type, or empty
	origin  string // WORKLOAD/CONTAINER
	comment string // origin in words
	ports   []int

	image, entrypoint, pull string
	args                    []string
	env                     []variable
	mounts                  []string
	values                  []Value // required values, in the order of their first use
}

// variable is a variable of a part's environment. Exactly one of text and secret is used.
type variable struct {
	name, text string
	secret     string // path of a file with the secret
}

// same reports whether both parts run the same program in the same way. The mounts of the other
// part may be fewer.
func (p part) same(o part) bool {
	covered := func(mount string) bool { return slices.Contains(p.mounts, mount) }
	missing := slices.ContainsFunc(o.mounts, func(m string) bool { return !covered(m) })
	return p.image == o.image && p.entrypoint == o.entrypoint && !missing &&
		slices.Equal(p.args, o.args) && slices.Equal(p.env, o.env) && slices.Equal(p.values, o.values)
}

// notes collects the texts of a Result.
type notes struct{ Result }

// add appends a text to a list, unless the list has it already.
func add(list *[]string, format string, args ...any) {
	text := clean(fmt.Sprintf(format, args...))
	if !slices.Contains(*list, text) {
		*list = append(*list, text)
	}
}

// secret records that a file with a secret must exist.
func (n *notes) secret(s Secret) {
	s.Source = clean(s.Source)
	if !slices.ContainsFunc(n.Secrets, func(o Secret) bool { return o.Path == s.Path }) {
		n.Secrets = append(n.Secrets, s)
	}
}

// finish writes the plugin files of the parts, and checks the answers in opts.
func (n *notes) finish(parts []part, opts Options) (*Result, error) {
	known := map[string]bool{}
	for i := range parts {
		p := &parts[i]
		for _, v := range p.values {
			known[v.Name] = true
			if opts.Values[v.Name] == "" && !slices.ContainsFunc(n.Required, func(o Value) bool { return o.Name == v.Name }) {
				n.Required = append(n.Required, v)
			}
		}

		file, err := p.file(n.ID, opts)
		if err != nil {
			return nil, err
		}

		n.Files = append(n.Files, file)
		if _, digest, _ := strings.Cut(p.image, "@"); digest == "" && !strings.HasPrefix(p.image, "${") {
			add(&n.Images, "%s", p.image)
		}
	}

	for _, name := range sortedKeys(opts.Values) {
		if !known[name] {
			return nil, invalid("no required value has the name %q; the required values are: %s", clean(name), listed(sortedKeys(known)))
		}
	}

	return &n.Result, nil
}

// Note: a manifest comes from another person. Its names appear in comments, messages and on screens.

// longestName is the maximum number of characters of a name in messages.
const longestName = 300

// clean makes a text from a manifest fit for one line of a message or comment.
func clean(s string) string {
	s = strings.ToValidUTF8(s, "?")
	s = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c >= 0x80 && c < 0xa0 || c == 0x2028 || c == 0x2029 || c == 0xfeff {
			return '?'
		}
		return c
	}, s)
	if runes := []rune(s); len(runes) > longestName {
		s = string(runes[:longestName]) + "…"
	}

	return s
}

// checked returns the plugin file that a text defines.
func checked(name string, text []byte) (*plugin.Definition, error) {
	_, def, err := pluginfile.Parse(name, text)
	if err != nil {
		return nil, invalid("the manifest has a text that no plugin file can express: %s", clean(err.Error()))
	}
	if !bytes.HasSuffix(text, []byte("\n")) {
		return nil, invalid("the manifest has a text that no plugin file can express")
	}

	return def, nil
}

// IDOf returns the id of the plugin that a plugin file defines. It returns "" if it cannot read the
// id. The file may have other mistakes.
func IDOf(text []byte) string {
	id, _, _ := pluginfile.Parse("", text)
	return id
}
