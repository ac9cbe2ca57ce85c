package manifest

import (
	"bytes"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/volmgr/plugin"
)

// file returns the plugin file of a part. The file is disabled.
func (p *part) file(id string, opts Options) (File, error) {
	name := id
	if p.kind != "" {
		name += "-" + p.kind
	}
	name += ".yaml"

	root := mapping()
	put(root, "id", scalar(id))
	if p.kind != "" {
		put(root, "type", scalar(p.kind))
	}

	put(root, "enabled", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: "false"})
	if len(p.values) > 0 {
		values := mapping()
		for _, v := range p.values {
			value := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"}
			if given := opts.Values[v.Name]; given != "" {
				value = scalar(given)
			}
			put(values, v.Name, value)
			values.Content[len(values.Content)-2].HeadComment = "# " + v.Reason
		}
		put(root, "values", values)
	}

	put(root, "container", p.container(opts))
	root.HeadComment = p.header(id, opts)

	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return File{}, invalid("the manifest has a text that no plugin file can express")
	}

	def, err := checked(name, b.Bytes())
	if err != nil {
		return File{}, err
	}

	return File{Name: name, Container: p.origin, Text: b.Bytes(), Definition: def}, nil
}

// container returns the key container of the plugin file.
func (p *part) container(opts Options) *yaml.Node {
	c := mapping()
	put(c, "runtime", scalar(opts.Runtime))
	put(c, "image", scalar(p.image))
	if p.entrypoint != "" {
		put(c, "entrypoint", scalar(p.entrypoint))
	}
	if len(p.args) > 0 {
		put(c, "args", sequence(p.args))
	}
	if len(p.env) > 0 {
		env := mapping()
		for _, v := range p.env {
			value := scalar(v.text)
			if v.secret != "" {
				value = mapping()
				value.Style = yaml.FlowStyle
				put(value, "file", scalar(v.secret))
			}
			put(env, v.name, value)
		}
		put(c, "env", env)
	}
	if len(p.mounts) > 0 {
		put(c, "mounts", sequence(p.mounts))
	}
	if p.pull != plugin.PullNever {
		put(c, "pull", scalar(p.pull))
	}

	return c
}

// header returns the comment at the beginning of a plugin file.
func (p *part) header(id string, opts Options) string {
	lines := []string{
		id + ": made from " + opts.File + ", " + p.comment,
		"",
		"The agent does not start the plugin while enabled is false. Before you change that:",
	}
	if slices.ContainsFunc(p.values, func(v Value) bool { return opts.Values[v.Name] == "" }) {
		lines = append(lines, "- Set all values.")
	}
	for _, v := range p.env {
		if v.secret != "" {
			lines = append(lines, "- Make the file "+v.secret+" with mode 0600, for the variable "+v.name+".")
		}
	}
	if len(p.mounts) > 0 {
		lines = append(lines, "- Check that the sources of the mounts exist.")
	}
	lines = append(lines, "- Compare the arguments with the documentation of the driver.")

	for i, line := range lines {
		lines[i] = strings.TrimRight("# "+clean(line), " ")
	}
	return strings.Join(lines, "\n")
}

func mapping() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"} }

func scalar(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(s)
	if strings.ContainsAny(s, "\n\r") {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

func sequence(items []string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
	for _, item := range items {
		n.Content = append(n.Content, scalar(item))
	}
	return n
}

func put(m *yaml.Node, key string, value *yaml.Node) {
	m.Content = append(m.Content, scalar(key), value)
}
