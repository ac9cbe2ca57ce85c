package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxObjects limits the objects of a manifest. Real manifests have fewer than a hundred.
const maxObjects = 2000

// decode reads the objects of a manifest. It replaces each list by its items.
func decode(file string, data []byte) ([]*object, error) {
	var objects []*object
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && bytes.Contains(data, []byte("{{")) {
			return nil, template(file, 0)
		}
		if err != nil {
			return nil, invalid("%s is not YAML: %s", file, syntax(err))
		}
		if len(doc.Content) == 0 {
			continue
		}

		if objects, err = appendObjects(objects, file, doc.Content[0], 0); err != nil {
			return nil, err
		}
	}

	if len(objects) == 0 {
		return nil, invalid("%s contains no object of Kubernetes, and is no config.json of a managed plugin of docker", file)
	}

	return objects, nil
}

// appendObjects appends the object at a node, or its items if it is a list.
func appendObjects(objects []*object, file string, n *yaml.Node, depth int) ([]*object, error) {
	if n = resolve(n); n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return objects, nil
	}
	if n.Kind == yaml.SequenceNode && depth == 0 {
		return appendItems(objects, file, n, depth)
	}
	if line, found := templateIn(n); found {
		return nil, template(file, line)
	}

	o := &object{node: n, line: n.Line}
	err := n.Decode(o)
	switch {
	case n.Kind != yaml.MappingNode || o.Kind == "":
		return nil, invalid("%s:%d: this document is not an object of Kubernetes: it has no kind", file, n.Line)
	case err != nil:
		return nil, o.wrong(file)
	case o.Kind == "Kustomization" || strings.HasPrefix(o.APIVersion, "kustomize.config.k8s.io/"):
		return nil, &Error{Kind: Template, Message: fmt.Sprintf("%s:%d: a Kustomization only refers to manifests", file, n.Line)}
	case len(objects) >= maxObjects:
		return nil, invalid("%s has more than %d objects", file, maxObjects)
	}

	if items := child(n, "items"); strings.HasSuffix(o.Kind, "List") && items != nil {
		if depth > 3 {
			return nil, invalid("%s:%d: lists are nested too deeply", file, n.Line)
		}
		return appendItems(objects, file, items, depth)
	}

	return append(objects, o), nil
}

func appendItems(objects []*object, file string, items *yaml.Node, depth int) (_ []*object, err error) {
	for _, item := range items.Content {
		if objects, err = appendObjects(objects, file, item, depth+1); err != nil {
			return nil, err
		}
	}
	return objects, nil
}

// into decodes an object. The error of the YAML library may contain values of a Secret, so it is not
// part of the result.
func (o *object) into(file string, to any) error {
	if err := o.node.Decode(to); err != nil {
		return o.wrong(file)
	}
	return nil
}

func (o *object) wrong(file string) error {
	return invalid("%s:%d: a field of this %s does not have the type that Kubernetes requires", file, o.line, clean(o.Kind))
}

// String returns the kind and the name of an object.
func (o *object) String() string { return clean(fmt.Sprintf("%s %q", o.Kind, o.Metadata.Name)) }

func template(file string, line int) error {
	place := file
	if line > 0 {
		place = fmt.Sprintf("%s:%d", file, line)
	}
	return &Error{Kind: Template, Message: place + ": this is a template, with {{ in it"}
}

// templateIn returns the line of the first {{ at or below a node. It ignores the data of ConfigMaps
// and Secrets, because drivers have templates of their own there.
func templateIn(n *yaml.Node) (line int, found bool) {
	switch n.Kind {
	case yaml.ScalarNode:
		return n.Line, strings.Contains(n.Value, "{{")
	case yaml.SequenceNode, yaml.DocumentNode:
		for _, item := range n.Content {
			if line, found := templateIn(item); found {
				return line, true
			}
		}

	case yaml.MappingNode:
		kind := child(n, "kind")
		data := kind != nil && slices.Contains([]string{"ConfigMap", "Secret"}, kind.Value)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			if key.Kind == yaml.MappingNode { // this is {{ .Values.x }} without quotes
				return key.Line, true
			}
			if data && slices.Contains([]string{"data", "stringData", "binaryData"}, key.Value) {
				continue
			}
			if line, found := templateIn(key); found {
				return line, true
			}
			if line, found := templateIn(value); found {
				return line, true
			}
		}
	}

	return 0, false
}

// syntax returns the message of the YAML parser without the input that it may repeat.
func syntax(err error) string {
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	if strings.Contains(message, "anchor") {
		return "an alias refers to no anchor"
	}
	return clean(message)
}

// resolve returns the node to which an alias refers, or n itself.
func resolve(n *yaml.Node) *yaml.Node {
	for range 10 {
		if n.Kind != yaml.AliasNode {
			break
		}
		n = n.Alias
	}
	return n
}

// child returns the value of a key below a mapping, by the path of keys. It returns nil if there is
// none.
func child(n *yaml.Node, path ...string) *yaml.Node {
	for _, key := range path {
		if n = resolve(n); n.Kind != yaml.MappingNode {
			return nil
		}

		at := -1
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				at = i + 1
			}
		}

		if at < 0 {
			return nil
		}
		n = n.Content[at]
	}

	return resolve(n)
}

// keys returns the keys of a mapping that have a value.
func keys(n *yaml.Node) (all []string) {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}

	for i := 0; i+1 < len(n.Content); i += 2 {
		value := resolve(n.Content[i+1])
		empty := value.Kind == yaml.ScalarNode && value.ShortTag() == "!!null" || value.Kind != yaml.ScalarNode && len(value.Content) == 0
		if !empty {
			all = append(all, n.Content[i].Value)
		}
	}

	return all
}
