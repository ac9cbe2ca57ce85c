package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"

	"github.com/volagent/volagent/agent/etcd/quorum"
)

// behind is the number of log entries by which a healthy member may be behind its leader.
const behind = 5000

// Member is a member of etcd's cluster.
type Member struct {
	ID     uint64
	Name   string // empty for a member that never ran
	Peer   string // its URL for the other members
	Client string // its URL for clients; empty for a member that never ran
	Voter  bool
}

// Members returns etcd's members and the id of etcd's cluster. If no majority answers, it returns
// the members that one of them knows, and certain is false.
func (c *Client) Members(ctx context.Context) (members []Member, cluster string, certain bool, err error) {
	for _, certain = range []bool{true, false} {
		members = nil
		err = c.any(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
			r, err := pb.NewClusterClient(conn).MemberList(ctx, &pb.MemberListRequest{Linearizable: certain})
			if err != nil {
				return err
			}
			cluster, members = hex(r.Header.ClusterId), decode(r.Members)
			return nil
		})
		if err == nil {
			return members, cluster, certain, nil
		}
	}
	return nil, "", false, err
}

func decode(list []*pb.Member) (members []Member) {
	for _, m := range list {
		d := Member{ID: m.ID, Name: m.Name, Voter: !m.IsLearner}
		if len(m.PeerURLs) > 0 {
			d.Peer = m.PeerURLs[0]
		}
		if len(m.ClientURLs) > 0 {
			d.Client = m.ClientURLs[0]
		}
		members = append(members, d)
	}
	return members
}

// Status is the state of one member's etcd.
type Status struct {
	Err     error // the member does not answer; the other fields are then empty
	ID      uint64
	Leader  uint64 // 0 if the member knows no leader
	Index   uint64
	Version string
	Size    int64
	InUse   int64
	Quota   int64
	Learner bool
	Full    bool // a member has the quota alarm
	Corrupt bool // a member has found that its data differs
}

// StatusOf asks the members at the given URLs for their state, all at once.
func (c *Client) StatusOf(ctx context.Context, urls []string) map[string]Status {
	var mu sync.Mutex
	var wg sync.WaitGroup
	all := map[string]Status{}
	for _, u := range urls {
		wg.Go(func() {
			s := c.status(ctx, u)
			mu.Lock()
			defer mu.Unlock()
			all[u] = s
		})
	}
	wg.Wait()
	return all
}

func (c *Client) status(ctx context.Context, endpoint string) (s Status) {
	err := c.at(ctx, endpoint, callLimit, func(ctx context.Context, conn *grpc.ClientConn) error {
		m := pb.NewMaintenanceClient(conn)
		r, err := m.Status(ctx, &pb.StatusRequest{})
		if err != nil {
			return err
		}
		s = Status{
			ID: r.Header.MemberId, Leader: r.Leader, Index: r.RaftAppliedIndex, Version: r.Version,
			Size: r.DbSize, InUse: r.DbSizeInUse, Quota: r.DbSizeQuota, Learner: r.IsLearner,
		}
		for _, e := range r.Errors {
			// The status of each member lists the alarms of all members, as texts.
			s.Full = s.Full || strings.Contains(e, pb.AlarmType_NOSPACE.String())
			s.Corrupt = s.Corrupt || strings.Contains(e, pb.AlarmType_CORRUPT.String())
		}
		return nil
	})
	if err != nil {
		s.Err = errors.New(describe(err))
	}
	return s
}

// Judge joins the members with their states, for the decisions of package quorum.
func Judge(members []Member, states map[string]Status) []quorum.Member {
	var newest uint64
	for _, s := range states {
		newest = max(newest, s.Index)
	}

	var judged []quorum.Member
	for _, m := range members {
		s, ok := states[m.Client]
		answers := ok && s.Err == nil && s.ID == m.ID
		q := quorum.Member{Name: m.Name, ID: m.ID, Voter: m.Voter}
		if answers {
			q.Version, q.Healthy = s.Version, s.Leader != 0 && s.Index+behind >= newest && !s.Corrupt
		}
		judged = append(judged, q)
	}
	return judged
}

// Judged reads the members with their states.
func Judged(ctx context.Context, c *Client) ([]Member, []quorum.Member, error) {
	members, _, _, err := c.Members(ctx)
	if err != nil {
		return nil, nil, err
	}
	return members, Judge(members, c.StatusOf(ctx, ClientURLs(members))), nil
}

// ClientURLs returns the URLs of the members that have run.
func ClientURLs(members []Member) (urls []string) {
	for _, m := range members {
		if m.Client != "" {
			urls = append(urls, m.Client)
		}
	}
	return urls
}

// AddLearner adds a member that does not vote. A member with this URL that exists already is no error.
func (c *Client) AddLearner(ctx context.Context, peer string) error {
	return c.any(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := pb.NewClusterClient(conn).MemberAdd(ctx, &pb.MemberAddRequest{PeerURLs: []string{peer}, IsLearner: true})
		if rpctypes.ErrorDesc(err) == rpctypes.ErrorDesc(rpctypes.ErrGRPCPeerURLExist) {
			return nil
		}
		return err
	})
}

// Promote makes a learner a voter.
func (c *Client) Promote(ctx context.Context, id uint64) error {
	return c.any(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := pb.NewClusterClient(conn).MemberPromote(ctx, &pb.MemberPromoteRequest{ID: id})
		return err
	})
}

// Remove removes a member. A member that does not exist is no error.
func (c *Client) Remove(ctx context.Context, id uint64) error {
	return c.any(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := pb.NewClusterClient(conn).MemberRemove(ctx, &pb.MemberRemoveRequest{ID: id})
		if rpctypes.ErrorDesc(err) == rpctypes.ErrorDesc(rpctypes.ErrGRPCMemberNotFound) {
			return nil
		}
		return err
	})
}

// Compact forgets all old revisions, and returns the revision that is left.
func (c *Client) Compact(ctx context.Context) (int64, error) {
	var revision int64
	err := c.any(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		kv := pb.NewKVClient(conn)
		r, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte(HostsPrefix), CountOnly: true})
		if err != nil {
			return err
		}
		revision = r.Header.Revision
		_, err = kv.Compact(ctx, &pb.CompactionRequest{Revision: revision, Physical: true})
		if rpctypes.ErrorDesc(err) == rpctypes.ErrorDesc(rpctypes.ErrGRPCCompacted) {
			return nil
		}
		return err
	})
	return revision, err
}

// Defragment returns the free space in the file of one member to the file system. The member answers
// nothing else meanwhile.
func (c *Client) Defragment(ctx context.Context, endpoint string) error {
	err := c.at(ctx, endpoint, longLimit, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := pb.NewMaintenanceClient(conn).Defragment(ctx, &pb.DefragmentRequest{})
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot defragment the etcd at %s: %s", endpoint, describe(err))
	}
	return nil
}

// Disarm clears the quota alarm of all members.
func (c *Client) Disarm(ctx context.Context) error {
	return c.any(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		m := pb.NewMaintenanceClient(conn)
		r, err := m.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_GET})
		if err != nil {
			return err
		}
		for _, a := range r.Alarms {
			if a.Alarm != pb.AlarmType_NOSPACE {
				continue
			}
			if _, err := m.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: a.MemberID, Alarm: a.Alarm}); err != nil {
				return err
			}
		}
		return nil
	})
}

// ByName finds a member by its name.
func ByName(members []Member, name string) (Member, bool) {
	i := slices.IndexFunc(members, func(m Member) bool { return m.Name == name })
	if i < 0 {
		return Member{}, false
	}
	return members[i], true
}

// hex writes an id as etcd does.
func hex(id uint64) string { return strconv.FormatUint(id, 16) }

// HexID writes the id of a member as etcd does.
func (m Member) HexID() string { return hex(m.ID) }
