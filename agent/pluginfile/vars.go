package pluginfile

import (
	"fmt"
	"slices"
	"strings"
)

// A plugin file may use these variables. CSI_ENDPOINT is also a variable in the environment of a
// plugin.
const (
	VarEndpoint  = "CSI_ENDPOINT"
	VarSocket    = "CSI_SOCKET"
	VarNodeID    = "NODE_ID"
	VarPluginID  = "PLUGIN_ID"
	VarStateDir  = "STATE_DIR"
	VarMountRoot = "MOUNT_ROOT"
)

var variables = []string{VarEndpoint, VarSocket, VarNodeID, VarPluginID, VarStateDir, VarMountRoot}

// Variables returns the names of the variables that a plugin file may use.
func Variables() []string { return slices.Clone(variables) }

// EnvIncarnation is the environment variable that identifies one process of a plugin. The agent
// sets a unique value for each process.
const EnvIncarnation = "VOLAGENT_INCARNATION"

// Expand replaces ${NAME} in s by the value of the variable. It replaces "$${" by "${", and does
// not change a "$" without a brace. An unknown name is an error.
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

// checkVariables returns the error that Expand would return for s.
func checkVariables(s string) error {
	_, err := Expand(s, func(string) string { return "" })
	return err
}
