package config

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// loadCluster reads and checks the cluster section, which is in the configuration file or in a file
// of its own. The error for a mistake names the file, the line and the key. viper has no part in
// this, because it changes keys to lower case and ignores unknown ones.
func (f configFile) loadCluster() (Cluster, error) {
	path := filepath.Join(filepath.Dir(f.path), ClusterFile)
	if path == filepath.Clean(f.path) {
		return Cluster{}, volume.Errorf(volume.ErrInvalid, "configuration file %s has the name of the file for the cluster section", f.path).
			WithHint("rename it to volagent.yaml")
	}

	raw, err := os.ReadFile(path)
	switch missing := errors.Is(err, fs.ErrNotExist); {
	case missing && f.cluster == nil:
		return Cluster{}, nil
	case missing:
		return readCluster(f.path, f.cluster)
	case err != nil:
		return Cluster{}, volume.Errorf(volume.ErrInvalid, "cannot read the configuration of the cluster: %v", err)
	case f.cluster != nil:
		return Cluster{}, volume.Errorf(volume.ErrInvalid, "%s:%d: file %s exists too, and both contain the cluster section", f.path, f.lines[clusterKey], path).
			WithHint("remove one of them")
	}

	root, err := rootOf(path, raw)
	if err != nil {
		return Cluster{}, err
	}
	if root == nil {
		root = &yaml.Node{Kind: yaml.MappingNode, Line: 1}
	}

	return readCluster(path, root)
}

// readCluster reads and checks the cluster section at a node of a file.
func readCluster(path string, n *yaml.Node) (Cluster, error) {
	c := Cluster{Prefix: DefaultPrefix, Boot: BootVerify}
	r := sectionReader{path: path, lines: map[string]int{}}
	err := r.mapping(n, clusterKey, "", readers{
		"endpoints": r.list("endpoints", &c.Endpoints),
		"ca":        r.text("ca", &c.CA),
		"cert":      r.text("cert", &c.Cert),
		"key":       r.text("key", &c.Key),
		"user":      r.text("user", &c.User),
		"password":  r.reference("password", &c.Password),
		"prefix":    r.text("prefix", &c.Prefix),
		"boot":      r.text("boot", &c.Boot),
		"secrets": func(n *yaml.Node) error {
			return r.mapping(n, "secrets", "secrets.", readers{
				"files":       r.list("files", &c.Secrets.Files),
				"credentials": r.list("credentials", &c.Secrets.Credentials),
				"env":         r.list("env", &c.Secrets.Env),
			})
		},
	})

	if err == nil {
		err = c.check(configFile{path: path, lines: r.lines})
	}
	if err != nil {
		return Cluster{}, err
	}

	return c, nil
}

// sectionReader reads one section of a configuration file. It records the line of each key that it
// reads, and the line of the section for each key that the section does not have. The name of a key
// in a map is "map.key".
type sectionReader struct {
	path  string
	lines map[string]int
}

// readers maps each key of a mapping to the function that reads its value.
type readers map[string]func(value *yaml.Node) error

func (r sectionReader) errorf(n *yaml.Node, format string, args ...any) *volume.Error {
	return volume.Errorf(volume.ErrInvalid, "%s:%d: "+format, append([]any{r.path, n.Line}, args...)...)
}

// mapping calls the function in known for each key of a YAML mapping. It refuses unknown and
// repeated keys. The argument within is the prefix of the keys in r.lines.
func (r sectionReader) mapping(n *yaml.Node, what, within string, known readers) error {
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		return r.errorf(n, "%q must have keys: %s", what, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	}

	seen := map[string]int{}
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read, ok := known[key.Value]
		switch {
		case !ok:
			return r.unknown(key, what, slices.Sorted(maps.Keys(known)))
		case seen[key.Value] != 0:
			return r.errorf(key, "key %q appears twice in %q, first in line %d", key.Value, what, seen[key.Value])
		}

		seen[key.Value] = key.Line
		if err := read(value); err != nil {
			return err
		}
	}

	for key := range known {
		line, ok := seen[key]
		if !ok {
			line = n.Line
		}
		r.lines[within+key] = line
	}

	return nil
}

// unknown returns the error for an unknown key of a section.
func (r sectionReader) unknown(key *yaml.Node, what string, known []string) error {
	err := r.errorf(key, "unknown key %q in %q", key.Value, what)
	if key.Value == clusterKey && what == clusterKey {
		return err.WithHint("%s has no outer key: remove this line, and move the keys below it to the left", ClusterFile)
	}
	return suggestKey(err, key.Value, known)
}

// text returns a function that reads a plain value. An empty value selects the default.
func (r sectionReader) text(key string, to *string) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		if n.Kind != yaml.ScalarNode {
			return r.errorf(n, "the value of %q must be a plain text", key)
		}
		if !isNull(n) {
			*to = n.Value
		}
		return nil
	}
}

// list returns a function that reads a list of different plain values.
func (r sectionReader) list(key string, to *[]string) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		if isNull(n) {
			return nil
		}
		if n.Kind != yaml.SequenceNode {
			return r.errorf(n, "the value of %q must be a list, as [a, b]", key)
		}

		for _, item := range n.Content {
			switch {
			case item.Kind != yaml.ScalarNode || item.Value == "" || isNull(item):
				return r.errorf(item, "the list %q contains an item that is not a plain text", key)
			case slices.Contains(*to, item.Value):
				return r.errorf(item, "the list %q contains %q twice", key, hideUser(item.Value))
			}
			*to = append(*to, item.Value)
		}

		return nil
	}
}

// reference returns a function that reads a reference to a secret. It refuses the value of a secret,
// and does not repeat it in the error.
func (r sectionReader) reference(key string, to *call.SecretRef) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		if isNull(n) {
			return nil
		}
		if n.Kind != yaml.MappingNode {
			return r.errorf(n, "%q must be a reference: a configuration file must not contain secrets", key).
				WithHint("%s: {file: PATH}, {credential: NAME} or {env: NAME}", key)
		}

		err := r.mapping(n, key, key+".", readers{
			"file":       r.text("file", &to.File),
			"credential": r.text("credential", &to.Credential),
			"env":        r.text("env", &to.Env),
		})

		if err != nil {
			return err
		}
		if to.Sources() != 1 {
			return r.errorf(n, "%q names %d secrets; it needs exactly one of file, credential, env", key, to.Sources())
		}

		return nil
	}
}
