package fence

import (
	"context"

	"github.com/volagent/volagent/volmgr/shared"
)

// preventers returns the hosts that use a volume.
func (f *Fencer) preventers(ctx context.Context, id string) (hosts []string, err error) {
	page, err := f.Store.Range(ctx, shared.Span{Key: shared.UseKey(id)}, 1, 0)
	if err != nil || len(page.KVs) == 0 {
		return nil, err
	}
	use, err := shared.Decode[shared.Use](page.KVs[0])
	if err != nil {
		return nil, err
	}
	if host := use.Value.Holder; host != "" {
		hosts = append(hosts, host)
	}

	err = shared.Each(ctx, f.Store, shared.Users(id), func(kv shared.KV) error {
		if host, ok := shared.LastID(kv.Key); ok {
			hosts = append(hosts, host)
		}
		return nil
	})
	return hosts, err
}

// readFence reads the keys that decide about the fencing of a host.
func (f *Fencer) readFence(ctx context.Context, host string) (shared.Fence, error) {
	return shared.ReadFence(ctx, f.Store, f.Node, host)
}

// readLost reads the keys that decide about one volume of a host.
func (f *Fencer) readLost(ctx context.Context, host, id string) (shared.Lost, error) {
	fc, err := f.readFence(ctx, host)
	if err != nil {
		return shared.Lost{}, err
	}
	res, err := f.Store.Do(ctx, shared.Txn{Then: shared.Reads(host, id)})
	if err != nil {
		return shared.Lost{}, err
	}
	sit, err := shared.ParseSituation(host, id, res)
	return shared.Lost{Fence: fc, Situation: sit}, err
}

// decideFence executes a decision about the fencing of a host. It returns the keys on which the last
// decision was based.
func (f *Fencer) decideFence(ctx context.Context, host string, by func(shared.Fence) (shared.Txn, error)) (shared.Fence, error) {
	return shared.Decide(ctx, f.Store, host, func(ctx context.Context) (shared.Fence, error) { return f.readFence(ctx, host) }, by)
}

// decideLost executes a decision about one volume of a host. It returns the keys on which the last
// decision was based.
func (f *Fencer) decideLost(ctx context.Context, host, id string, by func(shared.Lost) (shared.Txn, error)) (shared.Lost, error) {
	return shared.Decide(ctx, f.Store, host, func(ctx context.Context) (shared.Lost, error) { return f.readLost(ctx, host, id) }, by)
}
