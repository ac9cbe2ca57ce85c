package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/etcd/hostdir"
	"github.com/volagent/volagent/agent/etcd/join"
	"github.com/volagent/volagent/agent/etcd/member"
	"github.com/volagent/volagent/agent/etcd/quorum"
	"github.com/volagent/volagent/agent/etcd/wire"
	"github.com/volagent/volagent/agent/machine"
	"github.com/volagent/volagent/volmgr/suggest"
)

// leave takes this host out of the cluster.
func (r *runner) leave(ctx context.Context) (any, error) {
	s, err := r.dir.Load()
	if err != nil {
		return nil, err
	}
	if !r.Forget {
		c, err := member.Connect(r.dir, s)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		if err := r.takeOut(ctx, c, s, s.Name, true); err != nil {
			return nil, err
		}
	}

	unlock, err := r.stop(ctx, true)
	if err != nil {
		return nil, err
	}
	defer unlock()
	aside, err := r.dir.Leave(r.now())
	if err != nil {
		return nil, err
	}
	lines := []string{fmt.Sprintf("%s left cluster %s; its old data is in %s", s.Name, s.ClusterID, aside)}
	if r.Forget {
		lines = append(lines, "the cluster was not asked; if other members remain, tell one of them: "+suggest.Command("volctl cluster remove %s", s.Name))
	}
	return wire.Done{ClusterID: s.ClusterID, File: aside, Lines: lines}, nil
}

// remove removes a host that is dead or gone.
func (r *runner) remove(ctx context.Context) (any, error) {
	s, c, err := r.connect()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if r.Member == s.Name {
		return nil, wire.Errorf(api.CodeInvalid, "volctl cluster leave", "%q is this host", r.Member)
	}
	if err := r.takeOut(ctx, c, s, r.Member, false); err != nil {
		return nil, err
	}
	return wire.Done{ClusterID: s.ClusterID, Lines: []string{
		fmt.Sprintf("removed %s from cluster %s", r.Member, s.ClusterID),
		"if the host comes back, run there: volctl cluster leave --forget",
	}}, nil
}

// takeOut removes a host from etcd's members and from the hosts of the cluster. It refuses that while
// the host has holds, because another host may then use its volumes only with a proof.
func (r *runner) takeOut(ctx context.Context, c *member.Client, s hostdir.State, name string, self bool) error {
	members, _, _, err := c.Members(ctx)
	if err != nil {
		return err
	}
	judged := member.Judge(members, c.StatusOf(ctx, member.ClientURLs(members)))
	if quorum.Tolerates(judged) < 0 {
		return quorum.CheckRemove(judged, firstName(judged), self)
	}

	hosts, err := c.Hosts(ctx)
	if err != nil {
		return err
	}
	_, known := hosts[name]
	for _, p := range join.Named(members, hosts) {
		for j := range members {
			if members[j].Peer == p.Peer {
				members[j].Name, judged[j].Name = p.Name, p.Name
			}
		}
	}
	m, isMember := member.ByName(members, name)
	switch {
	case isMember:
		err = quorum.CheckRemove(judged, name, self)
	case !known && self:
		return nil // an earlier, interrupted leave has taken the host out already
	case !known:
		err = wire.Errorf(api.CodeNotFound, "volctl cluster status", "the cluster has no host %q", name)
	}
	if err != nil {
		return err
	}
	if err := checkHolds(ctx, c, s, hosts, name); err != nil {
		return err
	}

	if isMember {
		if err := removeMember(ctx, c, m.ID); err != nil {
			return fmt.Errorf("cannot remove %q from etcd's members: %w", name, err)
		}
	}
	return deleteHost(ctx, r.dir, s, name)
}

// removeMember removes a member. etcd refuses that for some seconds after another member has started,
// so removeMember repeats it.
func removeMember(ctx context.Context, c *member.Client, id uint64) error {
	const tries = 20
	for range tries {
		err := c.Remove(ctx, id)
		if !member.IsUnhealthy(err) {
			return err
		}
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
	}
	return wire.Errorf(api.CodeRefused, "volctl cluster status", "not all members are connected; etcd would lose its quorum")
}

// deleteHost deletes the key of a host. It asks the other members, because this host's etcd may have
// just left.
func deleteHost(ctx context.Context, dir hostdir.Dir, s hostdir.State, name string) error {
	c, err := member.Connect(dir, s)
	if err != nil {
		return err
	}
	defer c.Close()
	for range 10 {
		if err = c.Delete(ctx, member.HostKey(name)); err == nil || pause(ctx, settle/100) != nil {
			break
		}
	}
	return err
}

// checkHolds refuses a host whose agent has holds. The agent may have another node id than the name of
// the host.
func checkHolds(ctx context.Context, c *member.Client, s hostdir.State, hosts map[string]member.Host, name string) error {
	h := hosts[name]
	h.Name = name // also for a member that has not stored itself
	if name == s.Name {
		h.Node, h.Machine = s.Node, machine.Identity()
	}
	nodes, err := member.Nodes(ctx, c, s.Prefix)
	if err != nil {
		return err
	}

	for _, node := range member.NodesOf(h, hosts, nodes) {
		ids, err := member.Holds(ctx, c, s.Prefix, node)
		if err != nil {
			return err
		}
		if len(ids) > 0 {
			return holdsError(name, node, ids)
		}
	}
	return nil
}

// holdsError returns the error for a host that cannot go, because its agent has holds.
func holdsError(name, node string, ids []string) error {
	const most = 10
	list := strings.Join(ids[:min(len(ids), most)], ", ")
	if more := len(ids) - most; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	who := fmt.Sprintf("host %q", name)
	if node != name {
		who += fmt.Sprintf(", whose agent has the node id %q,", node)
	}
	return wire.Errorf(api.CodeRefused, "on that host: volctl node drain; if its machine is gone for ever: "+suggest.Command("volctl node replace %s --reason TEXT -y", node),
		"%s holds shared volumes (%s); without the host, no proof could show that it stopped writing", who, list)
}

func firstName(members []quorum.Member) string {
	if len(members) == 0 {
		return ""
	}
	return members[0].Name
}

// exists reports whether a file exists.
func exists(file string) (bool, error) {
	_, err := os.Lstat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
