package overview

import (
	"context"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// Volumes returns all shared volumes with their holders, in ascending order of their ids.
func (s *Service) Volumes(ctx context.Context) ([]shared.VolumeView, error) {
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()

	var all []shared.VolumeView
	at := map[string]int{}
	if err := shared.Each(ctx, s.Store, shared.Volumes(), func(kv shared.KV) error {
		e, err := shared.Decode[shared.Definition](kv)
		if id, ok := shared.LastID(kv.Key); ok && err == nil {
			at[id] = len(all)
			all = append(all, shared.VolumeView{Definition: e.Value})
		}
		return err
	}); err != nil {
		return nil, s.unreadable("the shared volumes", err)
	}

	uses, users := map[string]shared.Use{}, map[string][]shared.Entry[shared.User]{}
	if err := shared.Each(ctx, s.Store, shared.Uses(), func(kv shared.KV) error {
		e, err := shared.Decode[shared.Use](kv)
		if id, ok := shared.LastID(kv.Key); ok {
			uses[id] = e.Value
		}
		return err
	}); err != nil {
		return nil, s.unreadable("the holders of shared volumes", err)
	}
	if err := shared.Each(ctx, s.Store, shared.AllUsers(), func(kv shared.KV) error {
		e, err := shared.Decode[shared.User](kv)
		if id, _, ok := shared.UserIDs(kv.Key); ok {
			users[id] = append(users[id], e)
		}
		return err
	}); err != nil {
		return nil, s.unreadable("the users of shared volumes", err)
	}

	for id, i := range at {
		all[i].Holds = shared.Holders(id, uses[id], users[id])
	}
	slices.SortFunc(all, func(a, b shared.VolumeView) int { return strings.Compare(a.Volume.ID, b.Volume.ID) })
	return all, nil
}

// mostAtOnce is the number of holders whose keys one transaction reads. By default, etcd permits 128
// operations in a transaction.
const mostAtOnce = 25

// mostReads limits how often a volume is read anew because its holders have changed meanwhile.
const mostReads = 5

// Volume returns a shared volume with all its holds. The result ok is false if the cluster has no
// such volume. All holds come from one transaction, because holds of different moments may exclude
// each other. Only a volume with more than mostAtOnce holders is read in parts.
func (s *Service) Volume(ctx context.Context, id string) (v shared.VolumeView, ok bool, err error) {
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return v, false, err
	}
	defer cancel()

	var hosts []string
	for range mostReads {
		var found []string
		if v, found, err = s.volumeAt(ctx, id, hosts); err != nil || found == nil {
			return v, false, err
		}
		if len(found) > mostAtOnce || !slices.ContainsFunc(found, func(host string) bool { return !slices.Contains(hosts, host) }) {
			break
		}
		hosts = found
	}

	for i, h := range v.Holds {
		if h.State != "" {
			continue // the transaction has read the keys of this host
		}
		reads, err := s.read(ctx, holderReads(h.Host, id)...)
		if err == nil {
			v.Holds[i], err = s.hold(h, reads, h.Token.Epoch)
		}
		if err != nil {
			return v, false, s.unreadable("the holds on volume "+id, err)
		}
	}

	slices.SortFunc(v.Holds, func(a, b shared.HoldView) int { return strings.Compare(a.Host, b.Host) })
	return v, true, nil
}

// firstUsers is the number of users that are read together with their volume.
const firstUsers = 500

// volumeAt reads a volume, its holders, and the keys of the given hosts in one transaction. It returns
// the hosts of all holders, or nil if the cluster has no such volume.
func (s *Service) volumeAt(ctx context.Context, id string, hosts []string) (v shared.VolumeView, found []string, err error) {
	ops := []shared.Op{
		shared.Get(shared.MetaKey), shared.Get(shared.VolumeKey(id)), shared.Get(shared.UseKey(id)), shared.Get(shared.CallKey(id)),
		shared.GetSpan(shared.Users(id), firstUsers), shared.Get(shared.MoveKey(id)),
	}
	fixed := len(ops)
	for _, host := range hosts {
		ops = append(ops, holderReads(host, id)...)
	}
	reads, err := s.read(ctx, ops...)
	if err != nil {
		return v, nil, s.unreadable("volume "+id, err)
	}

	meta, err := first[shared.Meta](reads[0])
	if err != nil {
		return v, nil, err
	}
	def, err := first[shared.Definition](reads[1])
	if err != nil || !def.Exists() {
		return v, nil, err
	}
	use, err := first[shared.Use](reads[2])
	if err != nil {
		return v, nil, err
	}
	if c, err := first[shared.Call](reads[3]); err == nil && c.Exists() {
		v.Call = &shared.CallView{Volume: id, Call: c.Value}
	}
	if m, err := first[shared.Move](reads[5]); err == nil && m.Exists() {
		v.Move = &m.Value
	}
	users, err := s.users(ctx, id, reads[4])
	if err != nil {
		return v, nil, s.unreadable("the users of volume "+id, err)
	}

	v.Definition, found = def.Value, []string{}
	v.TakenOver = use.Value.TakenOver
	v.Conflict = shared.ConflictWords(id, use.Value, users)
	for _, h := range shared.Holders(id, use.Value, users) {
		h.Token.Epoch = meta.Value.Epoch
		if i := slices.Index(hosts, h.Host); i >= 0 {
			from := fixed + i*len(holderReads(h.Host, id))
			if h, err = s.hold(h, reads[from:], meta.Value.Epoch); err != nil {
				return v, nil, err
			}
		}
		v.Holds, found = append(v.Holds, h), append(found, h.Host)
	}
	return v, found, nil
}

// users decodes the users of a volume. If the first page is full, it reads the others.
func (s *Service) users(ctx context.Context, id string, part []shared.KV) (users []shared.Entry[shared.User], err error) {
	add := func(kv shared.KV) error {
		e, err := shared.Decode[shared.User](kv)
		users = append(users, e)
		return err
	}
	for _, kv := range part {
		if err := add(kv); err != nil {
			return nil, err
		}
	}
	if len(part) < firstUsers {
		return users, nil
	}
	return users, shared.Each(ctx, s.Store, shared.Users(id).After(part[len(part)-1].Key), add)
}

// holderReads returns the operations that read the keys of one holder, as hold needs them.
func holderReads(host, id string) []shared.Op {
	return []shared.Op{
		shared.Get(shared.HoldKey(host, id)), shared.Get(shared.NodeKey(host)), shared.Get(shared.LiveKey(host)), shared.Get(shared.StatusKey(host)),
	}
}

// hold completes a hold with the keys of its host, which the operations of holderReads have read.
func (s *Service) hold(h shared.HoldView, reads [][]shared.KV, epoch int64) (shared.HoldView, error) {
	held, err := first[shared.Hold](reads[0])
	if err != nil {
		return h, err
	}
	node, err := first[shared.Node](reads[1])
	if err != nil {
		return h, err
	}
	status, err := first[shared.Status](reads[3])
	if err != nil {
		return h, err
	}

	h.Token = volume.Token{}
	if held.Exists() {
		h = shared.ViewHold(h.Host, h.Volume, held, epoch)
	}
	h.State = shared.StateOf(node.Value, len(reads[2]) > 0, s.Now())
	if told, ok := status.Value.Volumes[h.Volume]; ok {
		h.Told = &told
	}
	return h, nil
}

// first decodes the only key of a read, which may not exist.
func first[T any](read []shared.KV) (shared.Entry[T], error) {
	if len(read) == 0 {
		return shared.Entry[T]{}, nil
	}
	return shared.Decode[T](read[0])
}

// Own returns the holds of this host that the cluster shows.
func (s *Service) Own(ctx context.Context) ([]shared.HoldView, error) {
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()

	return s.holdsOf(ctx, s.Node)
}

// Calls returns all controller calls in flight.
func (s *Service) Calls(ctx context.Context) ([]shared.CallView, error) {
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()

	return s.callsOf(ctx, "")
}

// callsOf returns the calls in flight of a host. Without a host, it returns all calls.
func (s *Service) callsOf(ctx context.Context, host string) (calls []shared.CallView, err error) {
	err = shared.Each(ctx, s.Store, shared.Calls(), func(kv shared.KV) error {
		e, err := shared.Decode[shared.Call](kv)
		id, ok := shared.LastID(kv.Key)
		if wanted := host == "" || e.Value.Executor == host; ok && wanted {
			calls = append(calls, shared.CallView{Volume: id, Call: e.Value})
		}
		return err
	})
	if err != nil {
		return nil, s.unreadable("the calls in flight", err)
	}
	return calls, nil
}

// holdsOf returns the holds of a host.
func (s *Service) holdsOf(ctx context.Context, host string) (holds []shared.HoldView, err error) {
	reads, err := s.read(ctx, shared.Get(shared.MetaKey))
	if err != nil {
		return nil, s.unreadable("the cluster", err)
	}
	meta, err := first[shared.Meta](reads[0])
	if err != nil {
		return nil, err
	}

	err = shared.Each(ctx, s.Store, shared.HoldsOf(host), func(kv shared.KV) error {
		e, err := shared.Decode[shared.Hold](kv)
		if _, id, ok := shared.HoldIDs(kv.Key); ok {
			holds = append(holds, shared.ViewHold(host, id, e, meta.Value.Epoch))
		}
		return err
	})
	if err != nil {
		return nil, s.unreadable("the holds of host "+host, err)
	}
	return holds, nil
}

// missing returns the error for a host that the cluster does not know.
func missing(host string) error {
	return volume.Errorf(volume.ErrNotFound, "the cluster has no host %q", host).WithHint("volctl node list")
}
