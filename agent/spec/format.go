package spec

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// The formats of volume files.
const (
	FormatYAML = "yaml"
	FormatJSON = "json"
	FormatHCL  = "hcl"
)

// Ending returns the format of a file according to the ending of its name. It returns "" for an
// unknown ending.
func Ending(name string) string {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".hcl":
		return FormatHCL
	case ".json":
		return FormatJSON
	case ".yaml", ".yml":
		return FormatYAML
	}

	return ""
}

// formatOf returns the format of a file. If the ending of the name is unknown, as for stdin,
// formatOf examines the content. HCL begins with "name =" or "name {", which no volume in YAML or
// JSON does. JSON counts as YAML.
func formatOf(name string, data []byte) string {
	if f := Ending(name); f != "" {
		return f
	}
	if hclBegin.Match(afterComments(data)) {
		return FormatHCL
	}
	return FormatYAML
}

var hclBegin = regexp.MustCompile(`^(?:[A-Za-z_][A-Za-z0-9_.-]*|"[^"\n]*")[ \t]*(?:=|(?:"[^"\n]*"[ \t]*)*\{)`)

// afterComments returns the text after leading blanks and HCL comments.
func afterComments(data []byte) []byte {
	for {
		data = bytes.TrimLeft(data, " \t\r\n")
		var end []byte

		switch {
		case bytes.HasPrefix(data, []byte("#")), bytes.HasPrefix(data, []byte("//")):
			end = []byte("\n")
		case bytes.HasPrefix(data, []byte("/*")):
			end = []byte("*/")
		default:
			return data
		}

		_, rest, ok := bytes.Cut(data, end)
		if !ok {
			return nil
		}

		data = rest
	}
}

// jsonValue is one of several JSON values in a file. The field line counts the lines before the
// value. The field column counts the characters before it in its first line.
type jsonValue struct {
	text         []byte
	line, column int
}

// jsonValues splits a file into its JSON values, such as the concatenated output of several runs of
// a program. It returns nil if any part of the file is not JSON.
func jsonValues(data []byte) []jsonValue {
	var values []jsonValue
	dec := json.NewDecoder(bytes.NewReader(data))
	seen, line, begin := 0, 0, 0 // line counts the lines up to seen; the last of them starts at begin
	for dec.More() {
		var raw json.RawMessage
		if dec.Decode(&raw) != nil {
			return nil
		}

		start := int(dec.InputOffset()) - len(raw)
		for i := bytes.IndexByte(data[seen:start], '\n'); i >= 0; i = bytes.IndexByte(data[seen:start], '\n') {
			line, begin, seen = line+1, seen+i+1, seen+i+1
		}

		values = append(values, jsonValue{text: raw, line: line, column: utf8.RuneCount(data[begin:start])})
	}

	return values
}

// shift adds the position of a text within its file to the positions of the text's nodes.
func shift(n *yaml.Node, line, column int) {
	if line == 0 && column == 0 {
		return
	}

	if n.Line == 1 {
		n.Column += column
	}

	n.Line += line
	for _, c := range n.Content {
		shift(c, line, column)
	}
}
