package spec

import _ "embed" // for the examples below

//go:embed example.yaml
var example string

//go:embed example.hcl
var exampleHCL string

// Example returns a commented volume file that Parse accepts. The bundled plugin can create its
// volume unchanged.
func Example() string { return example }

// ExampleIn returns the example in a format. JSON has no comments, so the example in JSON lacks the
// fields that the other examples show in comments.
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
