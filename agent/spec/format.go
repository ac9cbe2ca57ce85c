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

// formatOf returns the format of a file. If the name has no known ending, as for stdin, formatOf
// examines the content. HCL starts with "name =" or "name {", and a volume in YAML or JSON never
// does. formatOf returns YAML for JSON, because the YAML parser also reads JSON.
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

// jsonValue is one of several JSON values in a file. Its line and column are the position in the
// file at which the value starts, both counted from 0.
type jsonValue struct {
	text         []byte
	line, column int
}

// jsonValues splits a file into its JSON values, such as the concatenated output of several runs of
// a program. It returns nil if any part of the file is not JSON.
func jsonValues(data []byte) []jsonValue {
	var values []jsonValue
	dec := json.NewDecoder(bytes.NewReader(data))
	// The offset seen is in the line with the number line, which starts at the offset begin.
	seen, line, begin := 0, 0, 0
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

// shift converts the position of a node, and of all nodes below it, from a position in a text to a
// position in the file. The text starts at the given line and column of the file.
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
