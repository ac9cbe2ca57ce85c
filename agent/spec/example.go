package spec

import _ "embed" // for the example below

//go:embed example.yaml
var example string

// Example is a commented volume file that parses, and that the bundled plugin
// can create as it is.
func Example() string { return example }
