package pluginfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/agent/humantime"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// reader reads one plugin file. Its errors contain the file name, the line and, if possible, the
// key.
type reader struct {
	file   string
	values map[string]string // the file's own variables; an empty text is a missing value
}

func (r reader) errorf(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %s", r.file, n.Line, fmt.Sprintf(format, args...))
}

// fields maps each key of a YAML mapping to the function that reads the value of the key.
type fields map[string]func(value *yaml.Node) error

// mapping reads a YAML mapping. It calls the function in known for each key, and refuses unknown
// and repeated keys.
func (r reader) mapping(n *yaml.Node, what string, known fields) error {
	seen := map[string]int{}
	return r.pairs(n, what, func(key, value *yaml.Node) error {
		read, ok := known[key.Value]
		if !ok {
			return r.errorf(key, "unknown key %q in %s; known are %s", key.Value, what, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		if line, twice := seen[key.Value]; twice {
			return r.errorf(key, "key %q stands twice in %s, first in line %d", key.Value, what, line)
		}

		seen[key.Value] = key.Line
		return read(value)
	})
}

// wholeFile stands for the top level of a file in error messages.
const wholeFile = "a plugin file"

// pairs calls the function each for every key and value of a YAML mapping.
func (r reader) pairs(n *yaml.Node, what string, each func(key, value *yaml.Node) error) error {
	n = resolve(n)
	if n.Kind != yaml.MappingNode && what == wholeFile {
		return r.errorf(n, "not %s: expected YAML keys such as id and exec", what)
	}
	if n.Kind != yaml.MappingNode {
		return r.errorf(n, "%s must have YAML keys", what)
	}

	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Kind != yaml.ScalarNode {
			return r.errorf(n.Content[i], "a key of %s is not a word", what)
		}
		if err := each(n.Content[i], n.Content[i+1]); err != nil {
			return err
		}
	}

	return nil
}

// scalar returns a single value of any type as the file writes it.
func (r reader) scalar(n *yaml.Node, key string) (string, error) {
	n = resolve(n)
	switch {
	case n.Kind != yaml.ScalarNode:
		return "", r.errorf(n, "%q is not a single value", key)
	case n.Tag == "!!null":
		return "", nil
	default:
		return n.Value, nil
	}
}

// text returns a function that stores a single value in the variable to.
func (r reader) text(key string, to *string) func(*yaml.Node) error {
	return func(n *yaml.Node) (err error) {
		*to, err = r.scalar(n, key)
		return err
	}
}

// instance returns a function that reads the name of a controller, which distinguishes the
// controllers of one plugin. The name becomes an argument of commands and an element of a directory
// name, so only few characters are allowed.
func (r reader) instance(to *string) func(*yaml.Node) error {
	return func(n *yaml.Node) (err error) {
		if *to, err = r.scalar(n, "instance"); err == nil && *to != "" && volume.CheckPluginID(*to) != nil {
			err = r.errorf(n, "instance %.64q is not 1 to 48 characters of A-Z a-z 0-9 . _ -", *to)
		}
		return err
	}
}

// oneOf returns a function that stores a value in the variable to. The value must be one of the
// given words.
func (r reader) oneOf(key string, to *string, words ...string) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		s, err := r.scalar(n, key)
		if err != nil {
			return err
		}
		if !slices.Contains(words, s) {
			return r.errorf(n, "%q is %q; it can be %s", key, s, strings.Join(slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w == "" }), ", "))
		}

		*to = s
		return nil
	}
}

// noFence is the word for FenceNone in plugin files.
const noFence = "none"

// fence returns a function that reads the proof that a lost host no longer writes.
func (r reader) fence(to *plugin.Fence) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		var word string
		err := r.oneOf("fence", &word, "", noFence, string(plugin.FenceDetach), string(plugin.FenceDetachWhenOff), string(plugin.FenceHook))(n)
		if err != nil {
			return err
		}

		*to = plugin.Fence(word)
		if word == noFence {
			*to = plugin.FenceNone
		}
		return nil
	}
}

// duration returns a function that reads a positive duration.
func (r reader) duration(key string, to *time.Duration) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		s, err := r.scalar(n, key)
		if err != nil {
			return err
		}

		d, err := humantime.ParseDuration(s)
		if err != nil || d <= 0 {
			return r.errorf(n, "%q is %q; it is a duration above zero, like 30s, 2m or 1d, or a number of seconds", key, s)
		}

		*to = d
		return nil
	}
}

// leastStatsInterval is the minimum of stats_interval. A shorter interval could be expensive,
// because requests to remote storage may cost money.
const leastStatsInterval = 10 * time.Second

// statsInterval returns a function that reads stats_interval, the interval at which the agent asks
// a plugin about mounted volumes.
func (r reader) statsInterval(to **time.Duration) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		s, err := r.scalar(n, "stats_interval")
		if err != nil {
			return err
		}

		d, err := humantime.ParseDuration(s)
		if err != nil || d != 0 && d < leastStatsInterval {
			return r.errorf(n, "%q is %q; it must be 0 (never) or a duration of at least %s, such as 5m", "stats_interval", s, leastStatsInterval)
		}

		*to = &d
		return nil
	}
}

// count returns a function that reads a whole number within a range.
func (r reader) count(key string, to *int, least, most int) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		s, err := r.scalar(n, key)
		if err != nil {
			return err
		}

		i, err := strconv.Atoi(s)
		if err != nil || i < least || i > most {
			return r.errorf(n, "%q is %q; it is a whole number from %d to %d", key, s, least, most)
		}

		*to = i
		return nil
	}
}

// resolve returns the node to which a YAML alias refers, or n itself if n is not an alias.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// document parses a file that must contain exactly one YAML document, and returns its root node.
func (r reader) document(data []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF), err == nil && len(doc.Content) == 0:
		return nil, fmt.Errorf("%s:1: the file is empty", r.file)
	case err != nil:
		return nil, r.syntax(err)
	}

	switch err := dec.Decode(&more); {
	case errors.Is(err, io.EOF):
		return doc.Content[0], nil
	case err != nil:
		return nil, r.syntax(err)
	default:
		return nil, r.errorf(&more, "a second document; each plugin has a file of its own")
	}
}

// syntax converts an error of the YAML library to the form of the other errors.
func (r reader) syntax(err error) error {
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	if rest, ok := strings.CutPrefix(msg, "line "); ok {
		return fmt.Errorf("%s:%s", r.file, rest)
	}
	return fmt.Errorf("%s: %s", r.file, msg)
}

// secretRef reads one of {file: PATH}, {credential: NAME}, {env: NAME}.
func (r reader) secretRef(n *yaml.Node, key string) (*call.SecretRef, error) {
	var ref call.SecretRef
	err := r.mapping(n, key, fields{
		"file":       r.text("file", &ref.File),
		"credential": r.text("credential", &ref.Credential),
		"env":        r.text("env", &ref.Env),
	})

	if err != nil {
		return nil, err
	}

	set := 0
	for _, s := range []string{ref.File, ref.Credential, ref.Env} {
		if s != "" {
			set++
		}
	}

	if set != 1 {
		return nil, r.errorf(n, "%q names %d secrets; it needs exactly one of file, credential, env", key, set)
	}

	return &ref, nil
}
