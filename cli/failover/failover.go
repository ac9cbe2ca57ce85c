// Package failover contains the commands that run a service on one of several hosts, on the host that
// holds a shared volume.
//
// Each host has two units. The unit failover-NAME.service runs "volctl failover run", which claims the
// volume and waits for it. When this host has the volume, the command starts NAME.service. It stops
// NAME.service and ends when the host must give the volume up. systemd then starts it again.
//
// The parts of this design, and their reasons:
//
//   - The claim belongs to this run of the failover unit. So the agent detaches the volume also if the
//     command crashes or is killed. No clean-up command is needed.
//   - NAME.service has BindsTo= and After= on the failover unit. So it stops if that unit ends for
//     any reason, and before that unit if an administrator stops it.
//   - The failover unit is active while it waits. A unit that waits in the state "activating" would
//     keep systemd from finishing the boot of each standby host.
//   - NAME.service starts only while the volume is mounted (AssertPathIsMountPoint=). So a start by
//     hand on a standby host fails, and writes nothing to the directory below the mount point.
//   - Nothing here decides who may write. The hold of the volume does. A host whose failover unit
//     does the wrong thing can only start the service late, or not at all.
//   - The agent may stop, also for long. The claim stays, and so does the service.
package failover

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/mount"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

// New returns the command group "volctl failover".
func New(a *command.App, host Host) *cobra.Command {
	return command.Group("failover", "Run a service on one of several hosts", "",
		newPause(a, host), newResume(a, host), newRun(a, host), newContainers(a, host))
}

func newPause(a *command.App, host Host) *cobra.Command {
	return &cobra.Command{
		Use: "pause UNIT", Short: "Keep a service off this host",
		Long: `Keep a service with failover off this host. If the service runs here, it stops within a few
seconds, and this host gives the volume up. Another host can then take it. The switch stays on
over a boot, until "volctl failover resume".

UNIT is the service, as in web.service. The command needs root, and works without the agent.`,
		Example: "  volctl failover pause web.service",
		Args:    command.Exactly("UNIT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Do(cmd, func(_ context.Context, _ *apiclient.Client, out *output.Printer) error {
				if err := checkService(args[0]); err != nil {
					return err
				}
				if err := (files{host.StateDir, args[0]}).pause(a.Env.Now()); err != nil {
					return command.Failed(accessError(err), "pause %s", args[0])
				}
				return out.Say("%s is kept off this host; to undo it: %s", args[0], suggest.Command("volctl failover resume %s", args[0]))
			})
		},
	}
}

func newResume(a *command.App, host Host) *cobra.Command {
	return &cobra.Command{
		Use: "resume UNIT", Short: "Let this host run a service again",
		Long: `Let this host run a service with failover again, after "volctl failover pause". The service does
not move back by itself: this host takes the volume when no other host holds it. The command also
forgets the failures of the service on this host, so that the host need not wait any longer.`,
		Example: "  volctl failover resume web.service",
		Args:    command.Exactly("UNIT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Do(cmd, func(_ context.Context, _ *apiclient.Client, out *output.Printer) error {
				if err := checkService(args[0]); err != nil {
					return err
				}
				if err := (files{host.StateDir, args[0]}).resume(); err != nil {
					return command.Failed(accessError(err), "resume %s", args[0])
				}
				return out.Say("this host can run %s again", args[0])
			})
		},
	}
}

// checkService returns a usage error for a name that is not the name of a service.
func checkService(unit string) error {
	if isService(unit) {
		return nil
	}
	return command.Usage("name the service, as in web.service", "%q is not the name of a service", unit)
}

// accessError adds an exit code and a hint to a permission error.
func accessError(err error) error {
	if os.IsPermission(err) {
		return &api.Error{Code: api.CodePermission, Message: err.Error(), Hint: "run it as root"}
	}
	return err
}

// runOptions holds the flags of "volctl failover run".
type runOptions struct {
	service, volume, dir string
	prefer, options      []string
	delay                time.Duration
	mount                *mount.Options
}

func newRun(a *command.App, host Host) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use: "run UNIT ID DIR", Short: "Wait for a volume, and run a service while this host has it",
		Long: `Claim a shared volume, wait until this host has it, and start a service. Stop the service, and end,
when this host must give the volume up. The units of "volctl systemd generate --failover" run this
command. It belongs to no other place, because the claim ends with the unit failover-UNIT.`,
		Args: command.Exactly("UNIT", "ID", "DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.service, o.volume, o.dir = args[0], args[1], args[2]
			if err := o.check(); err != nil {
				return err
			}
			return a.Do(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
				return command.Failed(o.attempt(a, host, client, out).begin(ctx, a.Env.Getenv("NOTIFY_SOCKET"), o.dir), "run %s on this host", o.service)
			})
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.StringSliceVar(&o.prefer, "prefer", nil, "`HOSTS` in the order of preference, separated by commas")
	command.DurationVar(f, &o.delay, "delay", DefaultDelay, "how long each less preferred host waits longer for a free volume")
	f.StringArrayVar(&o.options, "options", nil, "mount `OPTIONS`, as for volctl mount; may be repeated")
	return cmd
}

// check parses the mount options, and returns an error for values that cannot work.
func (o *runOptions) check() (err error) {
	if err := checkService(o.service); err != nil {
		return err
	}
	if o.mount, err = mount.ReadOptions(o.options); err != nil {
		return err
	}
	if err := CheckDelay(o.delay); err != nil {
		return err
	}
	return command.CheckVolumeID(o.volume)
}

// CheckDelay returns a usage error for a wait that is not between 0 and the longest wait.
func CheckDelay(d time.Duration) error {
	if d < 0 || d > maxDelay {
		return command.Usage("--delay 10s", "--delay must be between 0 and %s", maxDelay)
	}
	return nil
}

// attempt returns the attempt for the flags.
func (o *runOptions) attempt(a *command.App, host Host, client *apiclient.Client, out *output.Printer) *attempt {
	claiming := command.Claiming{Volume: o.volume, Alloc: o.service, Request: o.mount.Request(), Timeout: o.mount.Timeout}
	claiming.Request.At = o.dir
	claiming.Request.Owner = api.Owner{Kind: api.OwnerUnit, Unit: Unit(o.service), Invocation: a.Env.Getenv("INVOCATION_ID")}

	socket, said := a.Env.Getenv("NOTIFY_SOCKET"), ""
	return &attempt{
		service: o.service, volume: o.volume, prefer: o.prefer, delay: o.delay,
		agent: client, host: host, files: files{host.StateDir, o.service},
		claim: func(ctx context.Context) error {
			_, err := claiming.Make(ctx, client, out)
			return err
		},
		say: func(state string) {
			if state != said {
				said = state
				notify(socket, "STATUS="+output.OneLine(state))
			}
		},
		log: out.Note, now: a.Env.Now, sleep: command.Sleep,
	}
}

// begin makes the directory for the volume, tells systemd that the unit is active, and makes the attempt.
func (t *attempt) begin(ctx context.Context, socket, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	notify(socket, "READY=1")
	return t.run(ctx)
}
