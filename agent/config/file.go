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
}

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

// parse reads a file's keys and values as plain text. It refuses unknown keys, repeated keys, and
// values that are not scalars. It returns an error for the first mistake, together with the valid
// keys.
func parse(path string, raw []byte) (configFile, error) {
	file := configFile{path: path, values: map[string]any{}, lines: map[string]int{}}
	var doc yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(raw)).Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return file, nil
		}
		return file, volume.Errorf(volume.ErrInvalid, "%s: %v", path, err)
	}

	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return file, nil
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
func (f configFile) set(key, value *yaml.Node) error {
	known := slices.ContainsFunc(settings, func(s setting) bool { return s.key == key.Value })
	switch {
	case !known:
		return f.unknown(key)
	case f.lines[key.Value] != 0:
		return volume.Errorf(volume.ErrInvalid, "%s:%d: key %q appears twice, first in line %d", f.path, key.Line, key.Value, f.lines[key.Value])
	case value.Kind != yaml.ScalarNode:
		return volume.Errorf(volume.ErrInvalid, "%s:%d: the value of %q must be a plain text", f.path, value.Line, key.Value)
	}

	f.lines[key.Value] = key.Line
	if value.Tag != "!!null" { // an empty value selects the default
		f.values[key.Value] = value.Value
	}

	return nil
}

// unknown returns the error for an unknown key. It suggests a known key with a similar name.
func (f configFile) unknown(key *yaml.Node) error {
	names := make([]string, len(settings))
	for i, s := range settings {
		names[i] = s.key
	}
	err := volume.Errorf(volume.ErrInvalid, "%s:%d: unknown key %q", f.path, key.Line, key.Value)
	if near := spec.Near(key.Value, names); len(near) > 0 {
		return err.WithHint("did you mean %q?", near[0])
	}

	return err.WithHint("known keys: %s", strings.Join(names, ", "))
}
