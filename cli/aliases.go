package cli

import "github.com/spf13/cobra"

// aliases are the short names at the top level: ls, inspect, ps and status. The pointers for wrong
// names are among them.
func aliases(a *app) []*cobra.Command {
	list := newVolumeList(a)
	list.Use, list.Aliases, list.Short = "ls", nil, "List the volumes (short for volume list)"
	claims := newClaimList(a)
	claims.Use, claims.Aliases, claims.Short = "ps", nil, "List the claims (short for claim list)"
	node := newNodeStatus(a)
	node.Use, node.Short = "status", "Show a summary of this host (short for node status)"
	inspect := newInspect(newVolumeStatus(a), a, "Show a volume as JSON (short for volume status ID -o json)")
	return append([]*cobra.Command{list, inspect, claims, node}, pointers()...)
}

