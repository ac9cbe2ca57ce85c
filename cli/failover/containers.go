package failover

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

// Label is the label of a container that runs on the host with a volume. Its value is the volume id.
const Label = "volagent.failover"

const (
	// containersEvery is the interval between two looks at the containers.
	containersEvery = 3 * time.Second

	// silentFor is how long docker may not answer, for example because it restarts.
	silentFor = time.Minute

	// dockerWithin limits one start or stop of the containers.
	dockerWithin = 5 * time.Minute
)

func newContainers(a *command.App, host Host) *cobra.Command {
	var stop bool
	cmd := &cobra.Command{
		Use: "containers ID", Short: "Run the containers with a label",
		Long: `Start the containers of docker that have the label volagent.failover=ID, and wait. The command fails
when one of them ends. With --stop, stop these containers. The units of "volctl systemd generate
--failover --docker" run this command on the host that has the volume.

The containers must exist, and must have no restart policy. Otherwise docker itself starts them on
a host that does not have the volume.`,
		Args: command.Exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := command.CheckVolumeID(args[0]); err != nil {
				return err
			}
			return a.Do(cmd, func(ctx context.Context, _ *apiclient.Client, out *output.Printer) error {
				c := containers{host: host, volume: args[0], sleep: command.Sleep, now: a.Env.Now}
				if stop {
					return command.Failed(c.stop(ctx), "stop the containers of volume %q", c.volume)
				}
				return command.Failed(c.run(ctx), "run the containers of volume %q", c.volume)
			})
		},
	}

	cmd.Flags().BoolVar(&stop, "stop", false, "stop the containers")
	return cmd
}

// containers are the containers of docker with the label of a volume. Only ids and the names of restart
// policies are read from docker's answers, so that no name or label can be mistaken for an id.
type containers struct {
	host   Host
	volume string
	sleep  func(ctx context.Context, d time.Duration) error
	now    func() time.Time
}

// run starts the containers, and returns an error when one of them has ended. It returns nil if ctx
// ends.
func (c *containers) run(ctx context.Context) error {
	ids, err := c.list(ctx)
	switch {
	case err != nil:
		return err
	case len(ids) == 0:
		return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("no container has the label %s=%s", Label, c.volume)}
	}

	if err := c.checkPolicies(ctx, ids); err != nil {
		return err
	}
	if err := c.docker(ctx, "start", ids); err != nil {
		return err
	}

	answered := c.now()
	for c.sleep(ctx, containersEvery) == nil {
		running, err := c.list(ctx, "--filter", "status=running")
		if err == nil {
			answered = c.now()
		}
		if err != nil && c.now().Sub(answered) < silentFor {
			continue
		}
		if err != nil && ctx.Err() == nil {
			return err
		}

		for _, id := range ids {
			if !slices.Contains(running, id) && ctx.Err() == nil {
				return fmt.Errorf("container %s has ended", id[:12])
			}
		}
	}

	return nil
}

// stop stops the containers.
func (c *containers) stop(ctx context.Context) error {
	ids, err := c.list(ctx, "--filter", "status=running")
	if err != nil || len(ids) == 0 {
		return err
	}
	return c.docker(ctx, "stop", ids)
}

// list returns the ids of the containers with the label.
func (c *containers) list(ctx context.Context, more ...string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, queryWithin)
	defer cancel()
	args := append([]string{"ps", "--all", "--quiet", "--no-trunc", "--filter", "label=" + Label + "=" + c.volume}, more...)
	out, err := c.host.Run(ctx, "docker", args...)
	if err != nil {
		return nil, err
	}
	return parseIDs(out)
}

var containerID = regexp.MustCompile(`^[0-9a-f]{64}$`)

// parseIDs parses a list of ids of containers.
func parseIDs(out string) (ids []string, err error) {
	for _, id := range strings.Fields(out) {
		if !containerID.MatchString(id) {
			return nil, fmt.Errorf("docker returned %q, which is not the id of a container", id)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// checkPolicies returns an error for a container that docker starts by itself.
func (c *containers) checkPolicies(ctx context.Context, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, queryWithin)
	defer cancel()
	out, err := c.host.Run(ctx, "docker", append([]string{"inspect", "--type=container", "--format={{.Id}} {{.HostConfig.RestartPolicy.Name}}", "--"}, ids...)...)
	if err != nil {
		return err
	}

	var errs []error
	for line := range strings.Lines(out) {
		id, policy, _ := strings.Cut(strings.TrimSpace(line), " ")
		if containerID.MatchString(id) && policy != "" && policy != "no" {
			errs = append(errs, &api.Error{
				Code: api.CodeRefused, Message: fmt.Sprintf("container %s has the restart policy %q, so docker starts it on any host", id[:12], policy),
				Hint: suggest.Command("docker update --restart=no %s", id[:12]),
			})
		}
	}

	return errors.Join(errs...)
}

// docker runs a command of docker with the containers.
func (c *containers) docker(ctx context.Context, verb string, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, dockerWithin)
	defer cancel()
	_, err := c.host.Run(ctx, "docker", append([]string{verb, "--"}, ids...)...)
	return err
}
