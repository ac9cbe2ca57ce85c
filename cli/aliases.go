package cli

import (
	"github.com/spf13/cobra"

	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/node"
	"github.com/volagent/volagent/cli/volume"
)

// aliases returns two kinds of commands for the top level: the short commands ls, inspect, ps and
// status, and hidden commands that correct a wrong name.
func aliases(a *command.App) []*cobra.Command {
	list := volume.NewList(a)
	list.Use, list.Aliases, list.Short = "ls", nil, "List the volumes (short for volume list)"
	claims := volume.NewClaimList(a)
	claims.Use, claims.Aliases, claims.Short = "ps", nil, "List the claims (short for claim list)"
	status := node.NewStatus(a)
	status.Use, status.Short = "status [HOST]", "Show a summary of this host (short for node status)"
	inspect := command.Inspect(volume.NewStatus(a), a, "Show a volume as JSON (short for volume status ID -o json)")
	return append([]*cobra.Command{list, inspect, claims, status}, volume.Pointers()...)
}
