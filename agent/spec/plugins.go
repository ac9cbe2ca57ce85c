package spec

import _ "embed"

//go:embed plugins/example.yaml
var pluginExample string

// PluginExample returns a plugin file with comments that the agent accepts. The file shows all keys. It
// is not for a particular driver; the package recipe has those.
func PluginExample() string { return pluginExample }
