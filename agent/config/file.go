package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/volmgr/volume"
)

// configFile holds the contents of a configuration file. If the file has mistakes, configFile holds
// the valid keys.
type configFile struct {
	path   string
	values map[string]any
	lines  map[string]int // the line number of each key

	cluster *yaml.Node // the value of the key "cluster", or nil
}

// clusterKey is the only key that has keys of its own instead of a plain value.
const clusterKey = "cluster"

// at adds the file and line of a key to an error about the key's value. If the value came from a
// flag or the environment, at returns the error unchanged.
func (f configFile) at(key string, err error) error {
	line, ok := f.lines[key]
	var de *volume.Error
	if !ok || !errors.As(err, &de) {
		return err
	}

	located := *de
	located.Message = fmt.Sprintf("%s:%d: %s", f.path, line, de.Message)
	return &located
}

// rootOf parses a file, and returns its root node. It returns nil for a file without keys.
func rootOf(path string, raw []byte) (*yaml.Node, error) {
	var doc yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(raw)).Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		return nil, volume.Errorf(volume.ErrInvalid, "%s: %v", path, err)
	}

	root := doc.Content[0]
	if isNull(root) {
		return nil, nil
	}

	return root, nil
}

// parse reads a file's keys and values as plain text. It refuses unknown keys, repeated keys, and
// values that are not scalars. Only the key "cluster" may have any value, which loadCluster reads.
// parse returns an error for the first mistake, together with the valid keys.
func parse(path string, raw []byte) (configFile, error) {
	file := configFile{path: path, values: map[string]any{}, lines: map[string]int{}}
	root, err := rootOf(path, raw)
	if root == nil || err != nil {
		return file, err
	}
	if root.Kind != yaml.MappingNode {
		return file, volume.Errorf(volume.ErrInvalid, "%s:%d: a configuration is a list of keys and values", path, root.Line)
	}

	var mistake error
	for i := 0; i < len(root.Content); i += 2 {
		if err := file.set(root.Content[i], root.Content[i+1]); err != nil && mistake == nil {
			mistake = err
		}
	}

	return file, mistake
}

// set stores one key and its value.
func (f *configFile) set(key, value *yaml.Node) error {
	known := slices.ContainsFunc(settings, func(s setting) bool { return s.key == key.Value })
	isCluster := key.Value == clusterKey
	switch {
	case !known && !isCluster:
		return f.unknown(key)
	case f.lines[key.Value] != 0:
		return volume.Errorf(volume.ErrInvalid, "%s:%d: key %q appears twice, first in line %d", f.path, key.Line, key.Value, f.lines[key.Value])
	case value.Kind != yaml.ScalarNode && !isCluster:
		return volume.Errorf(volume.ErrInvalid, "%s:%d: the value of %q must be a plain text", f.path, value.Line, key.Value)
	}

	f.lines[key.Value] = key.Line
	switch {
	case isNull(value): // an empty value selects the default
	case isCluster:
		f.cluster = value
	default:
		f.values[key.Value] = value.Value
	}

	return nil
}

// unknown returns the error for an unknown key. It suggests a known key with a similar name.
func (f *configFile) unknown(key *yaml.Node) error {
	names := make([]string, 0, len(settings)+1)
	for _, s := range settings {
		names = append(names, s.key)
	}

	err := volume.Errorf(volume.ErrInvalid, "%s:%d: unknown key %q", f.path, key.Line, key.Value)
	return suggestKey(err, key.Value, append(names, clusterKey))
}

// suggestKey adds to err, which is about an unknown key, the known key with the most similar name.
func suggestKey(err *volume.Error, key string, known []string) error {
	if near := spec.Near(key, known); len(near) > 0 {
		return err.WithHint("did you mean %q?", near[0])
	}
	return err.WithHint("known keys: %s", strings.Join(known, ", "))
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }
