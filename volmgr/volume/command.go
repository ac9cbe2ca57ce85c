package volume

import "github.com/volagent/volagent/volmgr/suggest"

// Command returns a command that a person can run. It is built by suggest.Command.
func Command(format string, args ...any) string { return suggest.Command(format, args...) }
