package overview

import (
	"context"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
)

// Hosts returns all hosts of the cluster, in ascending order of their names.
func (s *Service) Hosts(ctx context.Context) ([]shared.HostView, error) {
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()

	var hosts []shared.HostView
	at := map[string]int{}
	if err := shared.Each(ctx, s.Store, shared.Nodes(), func(kv shared.KV) error {
		e, err := shared.Decode[shared.Node](kv)
		if name, ok := shared.LastID(kv.Key); ok {
			at[name] = len(hosts)
			hosts = append(hosts, shared.HostView{Name: name, Node: e.Value, Seen: e.Value.Since})
		}
		return err
	}); err != nil {
		return nil, s.unreadable("the hosts", err)
	}

	if err := s.completeHosts(ctx, hosts, at); err != nil {
		return nil, s.unreadable("the hosts", err)
	}
	for i := range hosts {
		hosts[i].State = shared.StateOf(hosts[i].Node, hosts[i].Alive, s.Now())
	}
	return hosts, nil
}

// completeHosts adds to each host its lease, plugins, status and number of holds.
func (s *Service) completeHosts(ctx context.Context, hosts []shared.HostView, at map[string]int) error {
	host := func(key string) *shared.HostView {
		name, _ := shared.LastID(key)
		if i, ok := at[name]; ok {
			return &hosts[i]
		}
		return &shared.HostView{} // the host was added after the list was read
	}

	if err := shared.Each(ctx, s.Store, shared.Lives(), func(kv shared.KV) error {
		host(kv.Key).Alive = true
		return nil
	}); err != nil {
		return err
	}
	if err := shared.Each(ctx, s.Store, shared.NodeInfos(), func(kv shared.KV) error {
		e, err := shared.Decode[shared.NodeInfo](kv)
		host(kv.Key).Info = e.Value
		return err
	}); err != nil {
		return err
	}
	if err := shared.Each(ctx, s.Store, shared.Statuses(), func(kv shared.KV) error {
		e, err := shared.Decode[shared.Status](kv)
		h := host(kv.Key)
		h.Seen = later(h.Seen, e.Value.At)
		return err
	}); err != nil {
		return err
	}

	return shared.Each(ctx, s.Store, shared.Holds(), func(kv shared.KV) error {
		name, _, ok := shared.HoldIDs(kv.Key)
		if i, known := at[name]; ok && known {
			hosts[i].HoldCount++
		}
		return nil
	})
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Host returns one host with its holds and its calls in flight.
func (s *Service) Host(ctx context.Context, name string) (shared.HostView, error) {
	v := shared.HostView{Name: name}
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return v, err
	}
	defer cancel()

	reads, err := s.read(ctx, shared.Get(shared.NodeKey(name)), shared.Get(shared.LiveKey(name)), shared.Get(shared.NodeInfoKey(name)), shared.Get(shared.StatusKey(name)))
	if err != nil {
		return v, s.unreadable("host "+name, err)
	}

	node, err := first[shared.Node](reads[0])
	if err != nil {
		return v, err
	}
	if !node.Exists() {
		return v, missing(name)
	}
	info, err := first[shared.NodeInfo](reads[2])
	if err != nil {
		return v, err
	}
	status, err := first[shared.Status](reads[3])
	if err != nil {
		return v, err
	}

	v.Node, v.Info, v.Alive = node.Value, info.Value, len(reads[1]) > 0
	v.State, v.Seen = shared.StateOf(v.Node, v.Alive, s.Now()), later(v.Node.Since, status.Value.At)
	if v.Holds, err = s.holdsOf(ctx, name); err != nil {
		return v, err
	}
	for i, h := range v.Holds {
		v.Holds[i].State = v.State
		if told, ok := status.Value.Volumes[h.Volume]; ok {
			v.Holds[i].Told = &told
		}
	}

	if v.Node.State == shared.NodeFencing || v.Node.State == shared.NodeFenced {
		if v.Proof, err = s.proofOf(ctx, name, v.Node.Incarnation); err != nil {
			return v, s.unreadable("host "+name, err)
		}
	}

	v.HoldCount = len(v.Holds)
	v.Calls, err = s.callsOf(ctx, name)
	return v, err
}

// proofOf returns the proof that a host with an incarnation cannot write, or nil.
func (s *Service) proofOf(ctx context.Context, name string, incarnation uint64) (*shared.Proof, error) {
	reads, err := s.read(ctx, shared.Get(shared.FencedKey(name, incarnation)))
	if err != nil {
		return nil, err
	}
	p, err := first[shared.Proof](reads[0])
	if err != nil || !p.Exists() {
		return nil, err
	}
	return &p.Value, nil
}
