// Package cluster contains the commands of volctl about the cluster and its bundled etcd. The program
// volagent-etcd carries them out.
package cluster

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/volagent/volagent/agent/etcd/wire"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/volmgr/bytesize"
)

// New returns the command group "volctl cluster".
func New(a *command.App) *cobra.Command {
	g := &group{app: a}
	cmd := command.Group("cluster", "Join this host with others, and manage their bundled etcd",
		`Join this host with others, so that they share volumes, and manage the bundled etcd of the
cluster. These commands need root. They work on this host, and do not use the agent.

A cluster has one, three or five members that vote. The second host waits until the third one
has joined. Hosts after the fifth are clients, which run no etcd. See docs/cluster-etcd.md.`,
		newInit(g), newJoin(g), newToken(g), newStatus(g), newLeave(g), newRemove(g), newBackup(g), newRestore(g),
		newRestored(g), newResume(g), newCompact(g), newUpgrade(g))

	f := cmd.PersistentFlags()
	f.StringVar(&g.dataDir, "etcd-dir", defaultDir(a, "VOLAGENT_ETCD_DIR", defaultDataDir), "data `DIR` of volagent-etcd; also VOLAGENT_ETCD_DIR")
	f.StringVar(&g.configDir, "config-dir", defaultDir(a, "VOLAGENT_CONFIG_DIR", defaultConfigDir), "`DIR` of the agent's configuration, in which cluster.yaml is written; also VOLAGENT_CONFIG_DIR")
	return cmd
}

// hostOptions are the flags of the commands that make a host a part of a cluster.
type hostOptions struct {
	host    wire.Host
	noStart bool
}

func (o *hostOptions) add(f *pflag.FlagSet) {
	f.StringVar(&o.host.Name, "name", "", "`NAME` of this host in the cluster (the host name by default)")
	f.StringVar(&o.host.Node, "node", "", "node `ID` of this host's agent (the name by default)")
	f.StringVar(&o.host.Address, "address", "", "IP `ADDRESS` or host name at which the others reach this host")
	f.StringVar(&o.host.Listen, "listen", "", "IP `ADDRESS` on which etcd listens (that of --address by default)")
	f.IntVar(&o.host.ClientPort, "client-port", wire.ClientPort, "`PORT` of etcd for agents")
	f.IntVar(&o.host.PeerPort, "peer-port", wire.PeerPort, "`PORT` of etcd for the other members")
	f.IntVar(&o.host.JoinPort, "join-port", wire.JoinPort, "`PORT` on which this host lets others join")
	f.BoolVar(&o.noStart, "no-start", false, "do not enable and start volagent-etcd.service")
}

// complete fills in the name and the address of this host.
func (o *hostOptions) complete() error {
	if o.host.Name == "" {
		name, err := os.Hostname()
		if err != nil {
			return command.Failed(err, "read the name of this host")
		}
		o.host.Name = name
	}
	if o.host.Address != "" {
		return nil
	}

	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return command.Failed(err, "read the addresses of this host")
	}
	var found []string
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && n.IP.To4() != nil {
			found = append(found, n.IP.String())
		}
	}
	if len(found) != 1 {
		return command.Usage("name the address that the other hosts reach, with --address", "this host has %d addresses %q", len(found), found)
	}
	o.host.Address = found[0]
	return nil
}

func newInit(g *group) *cobra.Command {
	var o hostOptions
	var r wire.Request
	var quota string
	cmd := &cobra.Command{
		Use: "init", Short: "Make a cluster whose first member is this host",
		Long: `Make a cluster whose first member is this host. The command makes the certificates of the
cluster, starts volagent-etcd, writes the file cluster.yaml beside the agent's configuration, and
prints a token for the next host. The token is a secret: it works once, within an hour.

All hosts of a cluster trust each other as root. The ports 2379 and 2380 must be open between the
hosts, and port 2391 for hosts that join.`,
		Example: `  volctl cluster init --address 10.0.0.1
  volctl cluster token`,
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			size, err := parseSize(quota)
			if err != nil {
				return err
			}
			if err := o.complete(); err != nil {
				return err
			}
			r.Command, r.Host, r.NoStart, r.Quota = wire.Init, o.host, o.noStart, size
			return g.do(cmd, r, "make a cluster")
		},
	}

	f := cmd.Flags()
	o.add(f)
	f.StringVar(&r.Prefix, "prefix", "/volagent", "`PREFIX` of the agents' keys in etcd")
	f.StringVar(&quota, "quota", "", "greatest `SIZE` of etcd's data, such as 4GiB")
	command.DurationVar(f, &r.Life, "certificate-life", 90*24*time.Hour, "`TIME` after which a certificate ends; it is renewed at two thirds")
	return cmd
}

func newJoin(g *group) *cobra.Command {
	var o hostOptions
	var r wire.Request
	var client, witness bool
	var file string
	cmd := &cobra.Command{
		Use: "join [TOKEN]", Short: "Make this host a part of a cluster",
		Long: `Make this host a part of a cluster. The token comes from "volctl cluster token" on a member. Without
an argument, the command reads the token from standard input, so that it is not visible in the
list of processes.

The host becomes a member while the cluster has fewer than five, and otherwise a client. The number
of voters stays odd, so the second host votes only after the third one has joined. A
witness is a member without an agent. Two hosts need one for automatic failover.`,
		Example: `  ssh db1 volctl cluster token -q | volctl cluster join --address 10.0.0.2
  volctl cluster join --witness --token-file token`,
		Args: command.Between(0, "TOKEN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if client && witness {
				return command.Usage("", "--client and --witness exclude each other")
			}
			if err := o.complete(); err != nil {
				return err
			}
			if client {
				r.Role = wire.RoleClient
			} else if witness {
				r.Role = wire.RoleWitness
			}
			var err error
			if r.Token, err = g.readToken(cmd.Context(), args, file); err != nil {
				return err
			}
			r.Command, r.Host, r.NoStart = wire.Join, o.host, o.noStart
			return g.do(cmd, r, "join the cluster")
		},
	}

	f := cmd.Flags()
	o.add(f)
	f.BoolVar(&client, "client", false, "run no etcd on this host")
	f.BoolVar(&witness, "witness", false, "run a member of etcd, and no agent")
	f.StringVar(&file, "token-file", "-", "`FILE` with the token; - means standard input")
	return cmd
}

// readToken returns the token from an argument, a file or standard input.
func (g *group) readToken(ctx context.Context, args []string, file string) (string, error) {
	if len(args) == 1 {
		return args[0], nil
	}
	if file == "-" && g.app.Env.StdinTerminal {
		g.app.Complain("token: ")
	}
	_, raw, err := g.app.ReadFile(ctx, file)
	return string(raw), err
}

func newToken(g *group) *cobra.Command {
	var r wire.Request
	cmd := &cobra.Command{
		Use: "token", Short: "Make a token with which one host joins the cluster",
		Long: `Make a token with which one host joins the cluster. The token is a secret. It works once, and
expires. The cluster stores only a hash of it.`,
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if r.Life <= 0 || r.Life > 7*24*time.Hour {
				return command.Usage("", "the life of a token is at most a week")
			}
			r.Command = wire.Token
			return g.do(cmd, r, "make a token")
		},
	}
	command.DurationVar(cmd.Flags(), &r.Life, "expires", wire.TokenLife, "`TIME` after which the token expires")
	return cmd
}

func newLeave(g *group) *cobra.Command {
	r := wire.Request{Command: wire.Leave}
	cmd := &cobra.Command{
		Use: "leave", Short: "Take this host out of the cluster",
		Long: `Take this host out of the cluster, and stop volagent-etcd. The command refuses to leave while the
host holds shared volumes, or if the other members would lose their quorum. It moves the old data
aside, and deletes nothing.

With --forget, only this host forgets the cluster. Use that for a host that was removed, after a
restore on another host, or to end a cluster with one member.`,
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return g.do(cmd, r, "leave the cluster") },
	}
	cmd.Flags().BoolVar(&r.Forget, "forget", false, "do not ask the cluster")
	return cmd
}

func newRemove(g *group) *cobra.Command {
	return &cobra.Command{
		Use: "remove HOST", Short: "Remove a dead host from the cluster",
		Long: `Remove a host that does not come back. To replace it, let another host join afterwards. The
command refuses to remove a host that holds shared volumes, or a member without which the
others would lose their quorum.`,
		Args: command.Exactly("HOST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.do(cmd, wire.Request{Command: wire.Remove, Member: args[0]}, "remove %q", args[0])
		},
	}
}

func newBackup(g *group) *cobra.Command {
	r := wire.Request{Command: wire.Backup}
	cmd := &cobra.Command{
		Use: "backup FILE", Short: "Write a backup of the cluster's etcd",
		Long: `Write a snapshot of the cluster's etcd to a file, with a hash of its content. It contains the
definitions and holds of shared volumes, and not the data in the volumes. The command writes the
complete file or no file.`,
		Args: command.Exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := filepath.Abs(args[0])
			if err != nil {
				return command.FileError(args[0], err)
			}
			r.File = file
			return g.do(cmd, r, "back up the cluster")
		},
	}
	cmd.Flags().BoolVar(&r.Force, "force", false, "overwrite an existing file")
	return cmd
}

func newRestore(g *group) *cobra.Command {
	r := wire.Request{Command: wire.Restore}
	cmd := &cobra.Command{
		Use: "restore FILE", Short: "Restore the cluster's etcd from a backup",
		Long: `Restore the cluster's etcd from a backup, on one member. This host becomes the only member, in a new
epoch. All other members must forget the cluster and join again. Mounted volumes stay mounted.

Afterwards, no host gets a volume for one writer until you run "volctl cluster resume". First
wait until every host has registered, because the backup may not know the newest holds.`,
		Args: command.Exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := filepath.Abs(args[0])
			if err != nil {
				return command.FileError(args[0], err)
			}
			r.File = file
			return g.do(cmd, r, "restore the cluster")
		},
	}
	cmd.Flags().BoolVar(&r.NoStart, "no-start", false, "do not start volagent-etcd.service")
	return cmd
}

func newRestored(g *group) *cobra.Command {
	return &cobra.Command{
		Use: "restored", Short: "Tell the cluster that its own etcd was restored from a backup",
		Long: `Tell the cluster that its etcd was restored from a backup, if you run etcd yourself. The command
begins a new epoch, and no host gets a volume for one writer until you run "volctl cluster
resume". With the bundled etcd, "volctl cluster restore" does that.`,
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.do(cmd, wire.Request{Command: wire.Restored}, "mark the cluster as restored")
		},
	}
}

func newResume(g *group) *cobra.Command {
	return &cobra.Command{
		Use: "resume", Short: "Permit volumes for one writer again, after a restore",
		Long: `Permit volumes for one writer again, after a restore. The command refuses that until every known host
has registered since the restore, or was replaced with "volctl node replace". A host that is newer
than the backup is not known: wait until it has registered too, because it may use a volume.`,
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.do(cmd, wire.Request{Command: wire.Resume}, "resume the cluster")
		},
	}
}

func newCompact(g *group) *cobra.Command {
	var quota string
	cmd := &cobra.Command{
		Use: "compact", Short: "Free space in the cluster's etcd",
		Long: `Free space in the cluster's etcd. The command forgets old revisions, and clears the quota alarm. It
gives the space back to the file systems of the members, one after the other. Usually, this is
necessary only when etcd is full, because it forgets revisions by itself after an hour.`,
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			size, err := parseSize(quota)
			if err != nil {
				return err
			}
			return g.do(cmd, wire.Request{Command: wire.Compact, Quota: size}, "compact etcd")
		},
	}
	cmd.Flags().StringVar(&quota, "quota", "", "new greatest `SIZE` of the data of this host's etcd, such as 8GiB")
	return cmd
}

func newUpgrade(g *group) *cobra.Command {
	r := wire.Request{Command: wire.Upgrade}
	cmd := &cobra.Command{
		Use: "upgrade", Short: "Run the installed version of etcd on this member",
		Long: `Run the installed version of etcd on this member: an upgrade of the package does not restart etcd.
The command refuses that unless all members are healthy, and run this version or the one before.
Run it on one member after the other. After the last one, it also raises the schema of the
cluster, if the agents of all hosts support that.`,
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return g.do(cmd, r, "upgrade etcd") },
	}
	cmd.Flags().BoolVar(&r.DryRun, "dry-run", false, "print the steps of an upgrade, and change nothing")
	return cmd
}

// parseSize parses a size such as 4GiB. An empty text is 0.
func parseSize(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	size, err := bytesize.Parse(text)
	if err != nil || size < 16<<20 {
		return 0, command.Usage("for example 4GiB", "%q is not a size of at least 16MiB", text)
	}
	return size, nil
}
