package volume

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/volmgr/suggest"
)

// pointer returns a hidden command under a name that other tools use. The command always fails,
// with a hint that suggests the right command.
func pointer(name string, instead func(id string) string) *cobra.Command {
	return &cobra.Command{
		Use: name, Hidden: true, DisableFlagParsing: true, Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			id := "ID"
			for _, arg := range args {
				if !strings.HasPrefix(arg, "-") {
					id = arg
					break
				}
			}
			return command.Usage(instead(id), "there is no command %q", cmd.CommandPath())
		},
	}
}

// Pointers returns hidden commands for the wrong command names that users try most often.
func Pointers() []*cobra.Command {
	remove := func(id string) string {
		return fmt.Sprintf("%s forgets the volume and keeps its data; %s destroys the data", suggest.Command("volctl volume deregister %s", id), suggest.Command("volctl volume delete %s", id))
	}
	return []*cobra.Command{
		pointer("rm", remove),
		pointer("remove", remove),
		pointer("attach", func(id string) string { return suggest.Command("volctl volume claim %s", id) }),
	}
}
