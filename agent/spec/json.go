package spec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf16"
)

// fromJSON prepares a JSON file for the YAML parser. The YAML parser does not support the JSON
// escapes "\/" and surrogate pairs, so fromJSON replaces them. It keeps the line numbers. A text
// that is not JSON stays unchanged.
func fromJSON(data []byte) []byte {
	if !bytes.ContainsRune(data, '\\') || !json.Valid(data) {
		return data
	}

	out := make([]byte, 0, len(data))
	for i := 0; i < len(data); {
		if data[i] != '\\' || i+1 >= len(data) {
			out = append(out, data[i])
			i++
			continue
		}

		if data[i+1] == '/' {
			out = append(out, '/')
			i += 2
			continue
		}

		if r := utf16.DecodeRune(escaped(data, i), escaped(data, i+6)); r != '\uFFFD' {
			out = fmt.Appendf(out, `\U%08x`, r)
			i += 12
			continue
		}

		out = append(out, data[i], data[i+1])
		i += 2
	}

	return out
}

// escaped decodes the escape "\uXXXX" at index i. It returns 0 if there is no such escape at i.
func escaped(data []byte, i int) rune {
	if i+6 > len(data) || data[i] != '\\' || data[i+1] != 'u' {
		return 0
	}
	n, err := strconv.ParseUint(string(data[i+2:i+6]), 16, 16)
	if err != nil {
		return 0
	}
	return rune(n)
}
