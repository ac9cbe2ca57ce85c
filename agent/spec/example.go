package spec

import _ "embed"

//go:embed example.yaml
var example string

//go:embed example.hcl
var exampleHCL string

// Example returns a volume file with comments. Parse accepts the file, and the bundled plugin can
// create the volume in it.
func Example() string { return example }

// ExampleIn returns the example in the given format. The YAML and HCL examples show optional fields
// in comments. JSON has no comments, so the JSON example lacks these fields.
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
