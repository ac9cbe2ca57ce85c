package api

import "path/filepath"

// StartError returns the path of the file in which an agent leaves the reason why it could not
// start, as an [ErrorBody] in JSON. It lies beside the agent's socket. It is empty once an agent
// has started.
func StartError(socket string) string {
	return filepath.Join(filepath.Dir(socket), "start-error.json")
}
