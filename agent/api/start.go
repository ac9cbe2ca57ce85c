package api

import "path/filepath"

// StartError returns the path of the file into which an agent that cannot start writes the reason,
// as an [ErrorBody] in JSON. The file is in the directory of the agent's socket. A successful start
// empties it.
func StartError(socket string) string {
	return filepath.Join(filepath.Dir(socket), "start-error.json")
}
