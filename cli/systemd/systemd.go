// Package systemd contains the command of volctl that generates systemd units for mounts. It uses
// package mount to parse mount options and to find the name of the mount unit for a directory.
package systemd

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/failover"
	"github.com/volagent/volagent/cli/mount"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

// New returns the command group "volctl systemd".
func New(a *command.App, host mount.Host) *cobra.Command {
	return command.Group("systemd", "Generate systemd units for volumes", "", newGenerate(a, host))
}

func newGenerate(a *command.App, host mount.Host) *cobra.Command {
	o := generateOptions{host: host}
	cmd := &cobra.Command{
		Use: "generate ID DIR", Short: "Generate the systemd units that mount a volume",
		Long: `Generate the mount unit with which systemd mounts a volume at a directory. The mount is ordered
after the agent and before remote-fs.target, and a boot continues without it. With --for, a
drop-in makes another unit wait for the mount. systemd stops that unit before it unmounts the
volume. With --automount, systemd mounts the volume at the first access to the directory. The
command prints the units, each with the path where it belongs.

With --failover, the service of --for runs on one of several hosts: on the host that has the shared
volume. Generate the same units on each host. They claim the volume at DIR, and start the service
when this host has the volume. If the service ends or fails, or if "volctl failover pause" keeps it
off this host, this host gives the volume up. Then another host takes it. A host that comes later in
--prefer waits longer before it takes a free volume. With --docker, the service runs the containers
with the label volagent.failover=ID, and the command generates the service too.

With --install, the command writes the units to these paths, reloads systemd and enables the
mount. If an existing file differs, the command is refused (4) and writes nothing, unless you give
--force. The command starts nothing.`,
		Example: "  volctl systemd generate data /srv/data\n  volctl systemd generate data /srv/data --for web.service --install\n" +
			"  volctl systemd generate data /srv/data --failover --for web.service\n  volctl systemd generate data /srv/data --automount",
		Args: command.Exactly("ID", "DIR"), ValidArgsFunction: mount.Complete(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.volume, o.dir = args[0], args[1]
			return a.Read(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
				return command.Failed(runGenerate(ctx, o, client, out), "generate units for volume %q at %s", o.volume, o.dir)
			})
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.consumer, "for", "", "`UNIT` that needs the mount, as in web.service")
	f.StringArrayVarP(&o.options, "options", "o", nil, "mount `OPTIONS`, as for volctl mount; may be repeated")
	f.BoolVar(&o.automount, "automount", false, "mount the volume at first use")
	f.BoolVar(&o.failover.on, "failover", false, "run the service of --for on the host that has the shared volume")
	f.StringSliceVar(&o.failover.prefer, "prefer", nil, "`HOSTS` in the order of preference, separated by commas (with --failover)")
	command.DurationVar(f, &o.failover.delay, "delay", failover.DefaultDelay, "how long each less preferred host waits longer for a free volume")
	f.BoolVar(&o.failover.docker, "docker", false, "let the service run the containers with the label volagent.failover=ID (with --failover)")
	f.BoolVar(&o.install, "install", false, "write the units to /etc/systemd/system and enable the mount")
	f.BoolVar(&o.force, "force", false, "replace existing files that differ")

	a.AddLongOutputFlag(f)
	return cmd
}

func runGenerate(ctx context.Context, o generateOptions, client *apiclient.Client, out *output.Printer) error {
	if err := o.check(); err != nil {
		return err
	}
	if err := o.checkVolume(ctx, client); err != nil {
		return err
	}

	g := o.units()
	if !o.install {
		return out.Print(g, paths(g.Files), func(w *bytes.Buffer) error {
			for i, f := range g.Files {
				if i > 0 {
					w.WriteString("\n")
				}
				w.WriteString("# " + f.Path + "\n" + f.Text)
			}
			return nil
		})
	}

	written, err := o.installs(ctx, g)
	if err != nil {
		return err
	}

	return out.Print(g, paths(g.Files), func(w *bytes.Buffer) error {
		for _, f := range g.Files {
			did := "unchanged "
			if slices.Contains(written, f.Path) {
				did = "wrote "
			}
			w.WriteString(did + output.Printable(f.Path) + "\n")
		}

		did := "mount it"
		if o.failover.on {
			did = "start it"
		}
		fmt.Fprintf(w, "enabled %s; to %s now: %s\n", g.Enable, did, suggest.Command("systemctl start %s", g.Enable))
		if o.failover.on && !o.failover.docker {
			fmt.Fprintf(w, "it alone starts %s at boot: %s\n", o.consumer, suggest.Command("systemctl disable --now %s", o.consumer))
		}
		return nil
	})
}

// checkVolume returns an error if the volume is not registered, or if failover is impossible with it.
func (o *generateOptions) checkVolume(ctx context.Context, client *apiclient.Client) error {
	if !o.failover.on {
		_, err := client.Volume(ctx, o.parsed.Volume)
		return err
	}
	v, _, err := client.AnyVolume(ctx, o.parsed.Volume)
	if err != nil {
		return err
	}
	return checkShared(v)
}

func paths(files []unitFile) (all []string) {
	for _, f := range files {
		all = append(all, f.Path)
	}
	return all
}
