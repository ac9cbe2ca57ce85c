package command

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/apiclient"
)

// completionTimeout limits how long the shell waits for the agent after the user presses Tab.
const completionTimeout = time.Second

// NewCompletion returns the command "volctl completion".
func NewCompletion() *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return &cobra.Command{
		Use: "completion SHELL", Short: "Print completions for bash, zsh or fish",
		Example: `  volctl completion bash > /etc/bash_completion.d/volctl
  volctl completion zsh > "${fpath[1]}/_volctl"
  volctl completion fish > ~/.config/fish/completions/volctl.fish`,
		Args: Exactly("SHELL"), ValidArgs: shells,
		RunE: func(cmd *cobra.Command, args []string) error {
			root, w := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(w, true)
			case "zsh":
				return root.GenZshCompletion(w)
			case "fish":
				return root.GenFishCompletion(w, true)
			}

			return Usage("", "unknown shell %q: it is one of %s", args[0], strings.Join(shells, ", "))
		},
	}
}

// ids gets the possible values of an argument from the agent.
type ids func(ctx context.Context, client *apiclient.Client) ([]string, error)

// CompletionFunc completes an argument or the value of a flag. cobra defines its signature.
type CompletionFunc = func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective)

// Offer returns the completions that list gets from the agent. If the agent does not answer in
// time, it returns none.
func Offer(a *App, cmd *cobra.Command, list ids) ([]string, cobra.ShellCompDirective) {
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}

	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()

	client := apiclient.New(a.Socket)
	defer client.Close()

	found, err := list(ctx, client)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}

	return found, cobra.ShellCompDirectiveNoFileComp
}

// CompleteArg completes the first argument and no others.
func CompleteArg(a *App, list ids) CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return Offer(a, cmd, list)
	}
}

// CompleteAllocs completes a volume id as the first argument, and then the allocs that have claims
// on the volume.
func CompleteAllocs(a *App) CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return Offer(a, cmd, VolumeIDs)
		}

		return Offer(a, cmd, func(ctx context.Context, client *apiclient.Client) ([]string, error) {
			claims, err := client.Claims(ctx, apiclient.ClaimFilter{Volume: args[0]})
			var allocs []string
			for _, c := range claims {
				allocs = append(allocs, c.Alloc)
			}
			return allocs, err
		})
	}
}

// CompleteFlag completes the value of a flag with ids that list gets from the agent.
func CompleteFlag(a *App, cmd *cobra.Command, flag string, list ids) {
	register(cmd, flag, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return Offer(a, cmd, list)
	})
}

// CompleteChoice completes the value of a flag that has fixed choices.
func CompleteChoice(cmd *cobra.Command, flag string, choices []string) {
	register(cmd, flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return choices, cobra.ShellCompDirectiveNoFileComp
	})
}

// register adds completions to a flag. It panics if the flag does not exist or already has
// completions. A test finds such mistakes in the program.
func register(cmd *cobra.Command, flag string, f CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic(err)
	}
}
