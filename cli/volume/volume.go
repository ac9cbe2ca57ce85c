// Package volume contains the commands of volctl for volumes, claims and snapshots, with a file for
// each command.
package volume

import (
	"github.com/spf13/cobra"

	"github.com/volagent/volagent/cli/command"
)

// New returns the command group "volctl volume".
func New(a *command.App) *cobra.Command {
	cmd := command.Group("volume", "Create, claim and detach volumes", "",
		newInit(a), newCreate(a), newRegister(a), newValidate(a), newImportDocker(a),
		NewList(a), NewStatus(a), command.Inspect(NewStatus(a), a, "Show a volume as JSON (short for volume status ID -o json)"),
		newClaim(a), newDetach(a), newDeregister(a), newDelete(a), newStats(a),
		newExpand(a), newModify(a), newShare(a), newUnshare(a), newMove(a), newExport(a), newSnapshot(a),
	)
	cmd.AddCommand(Pointers()...)
	return cmd
}
