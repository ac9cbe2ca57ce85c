// Package mount contains the commands "volctl mount" and "volctl umount". The same code runs under
// the names mount.csi and umount.csi as a helper of mount(8). These commands examine the mount
// point on the host themselves.
package mount

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

const (
	// agentPatience limits how long mount waits for an agent that does not answer. During boot, the
	// agent may not have started yet.
	agentPatience = 15 * time.Second
	// Grace is how long volctl waits for an answer after the timeout. With the default timeout, the
	// total is still less than systemd's limit of 90 seconds.
	Grace = 5 * time.Second
)

// mounting is a request to mount a volume.
type mounting struct {
	*Options
	dir  string
	host Host

	// forget is set if the mount must not be added to libmount's table.
	forget bool
}

// New returns the command "volctl mount".
func New(a *command.App, host Host) *cobra.Command {
	var options []string
	cmd := &cobra.Command{
		Use: "mount ID DIR", Short: "Claim a volume and mount it at a directory",
		Long:    help,
		Example: example,
		Args:    command.Exactly("ID", "DIR"), ValidArgsFunction: Complete(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := newMounting(host, args[0], args[1], options)
			if err != nil {
				return err
			}
			return a.Do(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
				return runMount(ctx, m, client, out)
			})
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.StringArrayVarP(&options, "options", "o", nil, "mount `OPTIONS`, as in fstab(5); may be repeated")

	a.AddLongOutputFlag(f)
	return cmd
}

// newMounting checks the arguments and parses the mount options.
func newMounting(host Host, volume, dir string, options []string) (*mounting, error) {
	what := func(err error) error { return command.Failed(err, "mount volume %q at %s", volume, dir) }
	o, err := ReadOptions(options)
	if err != nil {
		return nil, what(err)
	}

	if o.Volume = volume; o.PerAlloc != nil {
		o.Volume = fmt.Sprintf("%s[%d]", volume, *o.PerAlloc)
	}

	if err := command.CheckVolumeID(o.Volume); err != nil {
		return nil, what(err)
	}

	m := &mounting{Options: o, host: host}
	if m.dir, err = filepath.Abs(dir); err != nil || dir == "" {
		return nil, what(command.Usage("name it by its absolute path", "cannot resolve the directory %q", dir))
	}
	if o.Alloc != "" {
		return m, nil
	}
	if o.Alloc = UnitName(m.dir); command.CheckAlloc(o.Alloc) != nil {
		return nil, what(command.Usage("-o alloc=NAME", "its path is too long for the name of an alloc"))
	}

	return m, nil
}

// result describes a mount that has been made.
type result struct {
	claim *api.Claim
	// before is set if the volume was already mounted at the directory for the same claim.
	before bool
}

func runMount(ctx context.Context, m *mounting, client *apiclient.Client, out *output.Printer) error {
	done, err := m.mount(ctx, client, out)
	if err != nil {
		return err
	}
	return out.Print(done.claim, []string{m.dir}, func(w *bytes.Buffer) error {
		w.WriteString(m.said(done) + "\n")
		return nil
	})
}

// said describes the result in a sentence for a person.
func (m *mounting) said(done *result) string {
	text := "mounted volume %q at %s for alloc %q"
	if done.before {
		text = "volume %q is mounted at %s already, for alloc %q"
	}
	return output.Printable(fmt.Sprintf(text, m.Volume, m.dir, m.Alloc))
}

// mount makes the mount, in these steps:
//
//  1. It opens the mount point, and checks that it is suitable. The descriptor stays open
//     until the agent has answered, because the agent binds the volume on that very directory.
//  2. It reaches the agent. With _netdev, it waits for the agent to start.
//  3. If a volume is mounted there already, it must belong to the same claim.
//  4. It creates the volume if it is missing and the options name a class.
//  5. It makes the claim and waits for the mount. This process is the claim's owner until the mount
//     exists, so nothing remains if this process ends early.
//  6. It tells libmount that umount(8) must call umount.csi for this mount.
func (m *mounting) mount(ctx context.Context, client *apiclient.Client, out *output.Printer) (*result, error) {
	deadline := time.Now().Add(m.Timeout)
	bounded, cancel := context.WithDeadline(ctx, deadline.Add(Grace))
	defer cancel()

	what := func(err error) error { return command.Failed(err, "mount volume %q at %s", m.Volume, m.dir) }

	table, err := m.host.Mounts()
	if err != nil {
		return nil, what(fmt.Errorf("cannot read the mount table: %w", err))
	}

	point, err := openPoint(m.dir, readTable(table))
	if err != nil {
		return nil, what(err)
	}
	defer point.close()

	there := len(point.above) > 0
	if !there {
		if err := m.check(point); err != nil {
			return nil, what(err)
		}
	}

	if err := m.reach(bounded, client, deadline); err != nil {
		return nil, what(err)
	}

	if there {
		if err := m.mine(bounded, client, point); err != nil {
			return nil, what(err)
		}
	}

	if err := m.provide(bounded, client, out, deadline); err != nil {
		return nil, what(err)
	}

	claim, err := m.claim(ctx, client, out, point, time.Until(deadline))
	if err != nil {
		return nil, what(err)
	}

	m.remember(ctx, claim)
	return &result{claim, there}, nil
}

// check returns an error if the mount point is not suitable for the request. The caller must make
// sure that nothing is mounted there.
func (m *mounting) check(point *point) error {
	if err := point.fits(m.req.AttachmentMode); err != nil || m.nonEmpty {
		return err
	}
	return point.empty()
}

// reach waits until the agent answers. Without the option _netdev, reach tries only once.
func (m *mounting) reach(ctx context.Context, client *apiclient.Client, deadline time.Time) error {
	begun := time.Now()
	if patience := begun.Add(agentPatience); patience.Before(deadline) {
		deadline = patience
	}

	for {
		_, err := client.Health(ctx)
		if command.CodeOf(err) != api.CodeUnreachable {
			return err
		}
		if !m.network {
			return err
		}
		if time.Until(deadline) < command.RetryEvery {
			e := *command.Wire(err)
			e.Message += fmt.Sprintf(", for %s", time.Since(begun).Round(time.Second))
			return &e
		}

		if err := command.Sleep(ctx, command.RetryEvery); err != nil {
			return err
		}
	}
}

// mine returns an error if the existing mount at the directory does not belong to the requested
// claim. If it does, the agent decides whether the options of the claim match.
func (m *mounting) mine(ctx context.Context, client *apiclient.Client, point *point) error {
	claims, err := client.Claims(ctx, apiclient.ClaimFilter{})
	if err != nil {
		return err
	}

	for _, c := range claims {
		switch {
		case c.At != m.dir:
		case c.Volume == m.Volume && c.Alloc == m.Alloc:
			return nil
		case !c.Wanted:
			return refusedPoint(api.CodeRefused, suggest.Command("volctl wait --volume %s --for free", c.Volume),
				"volume %q is still mounted there, and is being detached", c.Volume)
		default:
			return refusedPoint(api.CodeRefused, suggest.Command("volctl umount %s", m.dir), "volume %q is mounted there already, for alloc %q", c.Volume, c.Alloc)
		}
	}

	return refusedPoint(api.CodeRefused, suggest.Command("umount %s", m.dir), "something else is mounted there already: %s", point.above[len(point.above)-1])
}

// claim requests the claim. If nothing is mounted at the directory, claim passes a descriptor of
// the directory. Otherwise, the descriptor would refer to the mounted volume. The agent accepts
// descriptors only from root. For other users, it uses the path.
func (m *mounting) claim(ctx context.Context, client *apiclient.Client, out *output.Printer, point *point, left time.Duration) (*api.Claim, error) {
	o := command.Claiming{Volume: m.Volume, Alloc: m.Alloc, Request: m.req, Timeout: max(left, time.Millisecond), Grace: Grace}
	o.Request.At = m.dir
	o.Request.Owner = api.Owner{Kind: api.OwnerMount, PID: os.Getpid()}
	if len(point.above) == 0 && os.Geteuid() == 0 {
		o.Request.AtFD = new(int(point.file.Fd()))
	}
	return o.Make(ctx, client, out)
}

// remember adds the mount to libmount's table, so that umount(8) calls umount.csi and knows whether
// the mount needs the network. It ignores errors, because the agent also notices an unmount by
// another program.
func (m *mounting) remember(ctx context.Context, claim *api.Claim) {
	mounts, err := m.host.Mounts()
	if m.forget || err != nil {
		return
	}

	now := at(readTable(mounts), m.dir)
	if known, err := m.host.Table(); len(now) == 0 || err == nil && remembered(known, m.dir, now[len(now)-1]) {
		return
	}

	options := umountHelper
	if m.network {
		options += ",_netdev"
	}

	_ = m.host.Remember(ctx, claim.Target, m.dir, options) // an error is harmless
}

// Complete completes a volume id as the first argument, and then a directory.
func Complete(a *command.App) command.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return command.Offer(a, cmd, command.VolumeIDs)
		}
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
}

const help = `Claim a volume, wait until it is mounted, and mount it at a directory. The claim lives as long as
that mount. Any unmount, with volctl umount, umount(8) or another program, also detaches the
claim.

DIR must exist and be empty, and its path must not contain a symbolic link. While nothing is
mounted at DIR, DIR refuses writes (chattr +i). This prevents writes to the disk underneath.

mount(8) calls this command, under the name mount.csi, for a line of fstab(5) or a mount unit of
type csi. Options:
  alloc=NAME               the alloc (default the mount unit of DIR, as in srv-data.mount)
  ro, rw                   claim the volume for reading, or for reading and writing (the default)
  access_mode=MODE         access mode; ` + "`volctl volume claim --help`" + ` lists the modes
  attachment_mode=MODE     file-system; or block-device, with a file as DIR
  per_alloc=N              claim ID[N], the volume of alloc number N
  uid=, gid=, mode=        owner, group and mode of the volume's root
  recursive                apply them to everything in the volume, unless its root has them already
  mount_flag=OPTION        option for the plugin; may be repeated
  class=CLASS              create the volume with this class if it does not exist yet
  size=SIZE                size of such a new volume, as in 10GiB (default the class's)
  timeout=TIME             how long to wait for the mount (default 1m20s)
  nonempty                 mount over a directory that is not empty
  noimmutable              leave DIR writable while nothing is mounted there
  _netdev                  wait up to 15 seconds for an agent that does not answer yet
  nosuid, nodev, noexec, noatime, nodiratime, relatime, strictatime, nosymfollow
                           options of the mount at DIR only; suid, dev and so on are the default
  defaults, auto, nofail, user, comment=, x-… and similar options are ignored
The command refuses any other option, even if mount(8) is called with -s (sloppy).`

var example = strings.Trim(`
  volctl mount data /srv/data -o ro
  volctl mount data /srv/data -o uid=postgres,mode=0700,nosuid,noexec
  echo 'data /srv/data csi _netdev,nofail 0 0' >> /etc/fstab; mount /srv/data`, "\n")
