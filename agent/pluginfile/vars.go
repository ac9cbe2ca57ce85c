package pluginfile

import (
	"fmt"
	"slices"
	"strings"
)

// Variables that a plugin file may use. CSI_ENDPOINT is also in the plugin's environment.
const (
	VarEndpoint  = "CSI_ENDPOINT"
	VarNodeID    = "NODE_ID"
	VarPluginID  = "PLUGIN_ID"
	VarStateDir  = "STATE_DIR"
	VarMountRoot = "MOUNT_ROOT"
)

var variables = []string{VarEndpoint, VarNodeID, VarPluginID, VarStateDir, VarMountRoot}

// EnvIncarnation is the variable whose value identifies a plugin's process without doubt.
const EnvIncarnation = "VOLAGENT_INCARNATION"

// Expand replaces ${NAME} in s. "$${" stands for "${". A "$" without a brace after it stays as it
// is. An unknown name is an error.
func Expand(s string, value func(name string) string) (string, error) {
	var b strings.Builder
	for {
		at := strings.Index(s, "${")
		if at < 0 {
			b.WriteString(s)
			return b.String(), nil
		}
		if at > 0 && s[at-1] == '$' {
			b.WriteString(s[:at-1] + "${")
			s = s[at+2:]
			continue
		}

		name, rest, closed := strings.Cut(s[at+2:], "}")
		if !closed {
			return "", fmt.Errorf("%q has no closing brace", s[at:])
		}
		if !slices.Contains(variables, name) {
			return "", fmt.Errorf("unknown variable ${%s}; known are %s", name, strings.Join(variables, ", "))
		}

		b.WriteString(s[:at] + value(name))
		s = rest
	}
}

// checkVariables returns the error that Expand would return.
func checkVariables(s string) error {
	_, err := Expand(s, func(string) string { return "" })
	return err
}
