package spec

import _ "embed" // for the examples below

//go:embed example.yaml
var example string

//go:embed example.hcl
var exampleHCL string

// Example is a commented volume file that parses, and that the bundled plugin
// can create as it is.
func Example() string { return example }

// ExampleIn is the example in a format. JSON has no comments, so in that there are
// only the fields that the others do not leave to their reader.
func ExampleIn(format string) (string, error) {
	switch format {
	case FormatHCL:
		return exampleHCL, nil
	case FormatJSON:
		specs, err := Parse("example.yaml", []byte(example))
		if err != nil {
			return "", err
		}
		text, err := Write(FormatJSON, specs)
		return string(text), err
	}
	return example, nil
}
