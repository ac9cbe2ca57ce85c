package cli

import (
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cli/command"
)

// These are the exit codes of volctl.
const (
	exitDone              = 0
	exitFailed            = 1
	exitUsage             = 2
	exitNotFound          = 3
	exitRefused           = 4
	exitTimeout           = 5
	exitPluginUnavailable = 6
	exitUnreachable       = 7
	exitPermission        = 8
)

// exitCodesHelp is the table of exit codes in the help text.
const exitCodesHelp = `Exit codes:
  0  done
  1  failed, or interrupted
  2  wrong usage: an unknown flag, a bad id, a mistake in a volume file, an ambiguous prefix
  3  not found
  4  refused by the state: in use, no such capability, an immutable field
  5  timed out
  6  the plugin is unavailable
  7  the agent is not reachable
  8  permission denied`

// exitCode returns the exit code for an error. No other function decides the exit code of volctl.
func exitCode(err error) int {
	switch command.CodeOf(err) {
	case "":
		return exitDone
	case api.CodeInvalid:
		return exitUsage
	case api.CodeNotFound:
		return exitNotFound
	case api.CodeRefused:
		return exitRefused
	case api.CodeTimeout:
		return exitTimeout
	case api.CodePluginUnavailable:
		return exitPluginUnavailable
	case api.CodeUnreachable:
		return exitUnreachable
	case api.CodePermission:
		return exitPermission
	default:
		return exitFailed
	}
}
