package hold

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// answerWithin limits the time in which this host answers a question.
const answerWithin = 5 * time.Second

// rereadAtOnce is the number of definitions in one read. etcd executes at most 128 operations in a transaction
// by default.
const rereadAtOnce = 100

// rereadAll gives the records of this host the definitions that the cluster has now. Notices that
// were written before the watch began do not reach this host. After an outage, all hosts do this at the same time,
// so the host reads many definitions at once.
func (s *follower) rereadAll(ctx context.Context) error {
	var ids []string
	for _, r := range s.Records.Volumes() {
		if r.Volume.Shared {
			ids = append(ids, r.Volume.ID)
		}
	}

	for some := range slices.Chunk(ids, rereadAtOnce) {
		if err := s.reread(ctx, some...); err != nil {
			return err
		}
	}
	return nil
}

// reread gives the records of this host the definitions that the cluster has now. It reads at most rereadAtOnce
// volumes.
func (s *follower) reread(ctx context.Context, ids ...string) error {
	var reads []shared.Op
	for _, id := range ids {
		reads = append(reads, shared.Get(shared.VolumeKey(id)))
	}
	res, err := s.get(ctx, reads)
	if err != nil {
		return err
	}

	for _, kvs := range res.Reads {
		for _, kv := range kvs { // none, if the cluster has no such volume
			e, err := shared.Decode[shared.Definition](kv)
			if err != nil {
				return err
			}
			if err := s.redefine(ctx, e.Value.Shown()); err != nil {
				return err
			}
		}
	}
	return nil
}

// noticed reacts to a change of the definition of a volume that some host uses. If another host has
// made the change, this host has an event of it.
func (s *follower) noticed(ctx context.Context, id string, c shared.Change) {
	had, ok := s.Records.Volume(id)
	if !ok || !had.Volume.Shared || c.Deleted {
		return
	}
	if err := s.reread(ctx, id); err != nil {
		if ctx.Err() == nil {
			s.Log.Warn("cannot read the changed definition of a volume; the next claim reads it again", "volume", id, "error", err)
		}
		return
	}

	n, err := shared.Decode[shared.Notice](c.KV)
	now, ok := s.Records.Volume(id)
	if err != nil || !ok || n.Value.By == s.Node {
		return
	}
	if e := changedBy(n.Value.By, had.Volume, now.Volume); e.Type != "" {
		s.Events(e)
	}
}

// changedBy returns the event of a change by another host. It returns no event if only the progress
// of an expansion has changed.
func changedBy(host string, had, now volume.Volume) volume.Event {
	e := volume.Event{Volume: now.ID, Plugin: now.PluginID}
	switch {
	case now.Capacity != had.Capacity:
		e.Type, e.Message = volume.EventExpanded, fmt.Sprintf("host %q has expanded the volume to %s", host, volume.Size(now.Capacity))
	case !had.OnlyGrows(now):
		e.Type, e.Message = volume.EventUpdated, fmt.Sprintf("host %q has changed the definition of the volume", host)
	}
	return e
}

// removals describes for people how a volume was removed from the cluster.
var removals = map[volume.EventType]string{
	volume.EventDeleted:      "has deleted the volume for all hosts",
	volume.EventDeregistered: "has deregistered the volume for all hosts; its data remains",
	volume.EventUnshared:     "has taken the volume out of the cluster",
}

// removed adds an event if another host has removed a volume that concerns this host. It ignores
// values that this release does not know.
func (s *follower) removed(c shared.Change) {
	r, err := shared.Decode[shared.Removed](c.KV)
	v := r.Value
	text, known := removals[v.How]
	if err != nil || !known || c.Deleted || v.By == s.Node || !s.Concerned(v.Volume) {
		return
	}

	s.Events(volume.Event{Type: v.How, Volume: v.Volume, Message: fmt.Sprintf("host %q %s", v.By, text)})
}

// answer answers the question of another host whether this host uses a storage volume on its own.
func (s *follower) answer(ctx context.Context, kv shared.KV) {
	q, err := shared.Decode[shared.Question](kv)
	if err != nil || q.Value.Node == s.Node {
		return
	}

	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()

	a := shared.Answer{Volume: s.Uses(q.Value.Driver, q.Value.ExternalID)}
	_, err = shared.DoSure(ctx, s.Store, shared.Txn{
		If:   []shared.Compare{shared.Unchanged(kv)},
		Then: []shared.Op{shared.PutLeased(shared.AnswerKey(q.Value.ID, s.Node), shared.Entry[shared.Answer]{}.Encode(a), kv.Lease)},
	})
	if err != nil && ctx.Err() == nil {
		s.Log.Warn("cannot answer the question of another host about a volume", "host", q.Value.Node, "volume", q.Value.Volume, "error", err)
	}
}
