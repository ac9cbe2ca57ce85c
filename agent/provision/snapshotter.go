package provision

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// snapshotter makes, lists and deletes snapshots.
type snapshotter struct {
	*common
	progress progress
}

// dropIntents deletes the intents of the snapshot or group with the given id.
func (s *snapshotter) dropIntents(ctx context.Context, driver string, group bool, id string) (err error) {
	for _, i := range s.Store.Snapshots() {
		if i.Driver == driver && i.ID == id && i.Group == group {
			err = errors.Join(err, s.dropIntent(ctx, i))
		}
	}
	return err
}

// dropIntent deletes the intent of a snapshot whose outcome is known.
func (s *snapshotter) dropIntent(ctx context.Context, i volume.SnapshotIntent) error {
	return s.Store.Update(context.WithoutCancel(ctx), func(tx Tx) error {
		if old, ok := tx.Snapshot(i.Key()); ok && old.Same(i) {
			tx.DeleteSnapshot(i.Key())
		}
		return nil
	})
}

// checkCanSnapshot returns an error if the plugin cannot make snapshots on this host. If group is set, it
// checks for group snapshots instead.
func (f pluginFinder) checkCanSnapshot(ctx context.Context, pluginID string, group bool, c plugin.Caps) error {
	if err := f.checkControllerHere(ctx, pluginID, "make or find these snapshots"); err != nil {
		return err
	}
	return checkSnapshotCaps(pluginID, group, c)
}

// checkSnapshotCaps returns an error if a plugin cannot make snapshots, or group snapshots if group is
// set.
func checkSnapshotCaps(pluginID string, group bool, c plugin.Caps) error {
	switch {
	case group && !c.GroupSnapshot:
		return volume.Errorf(volume.ErrRefused, "plugin %q cannot make group snapshots", pluginID).WithRemedy(remedy.Of(remedy.ShowPlugin, pluginID))
	case !group && !c.Snapshot:
		return volume.Errorf(volume.ErrRefused, "plugin %q cannot make snapshots", pluginID).WithRemedy(remedy.Of(remedy.ShowPlugin, pluginID))
	}

	return nil
}

// snapshotNames returns the names of all snapshots whose id is known, including unfinished
// snapshots.
func (s *snapshotter) snapshotNames() []volume.SnapshotName {
	names := s.Store.SnapshotNames()
	for _, i := range s.Store.Snapshots() {
		if i.ID != "" {
			names = append(names, i.Named(i.ID))
		}
	}

	return names
}

// forgetNames deletes the stored names of a deleted snapshot.
func (s *snapshotter) forgetNames(ctx context.Context, driver string, group bool, id string) error {
	gone := func(n volume.SnapshotName) bool { return n.Driver == driver && n.Group == group && n.ID == id }
	if !slices.ContainsFunc(s.Store.SnapshotNames(), gone) {
		return nil
	}

	return s.Store.Update(context.WithoutCancel(ctx), func(tx Tx) error {
		for _, n := range tx.SnapshotNames() {
			if gone(n) {
				tx.DeleteSnapshotName(n.Key())
			}
		}

		return nil
	})
}

// allSnapshots returns the snapshots of a plugin from all pages of the listing.
func allSnapshots(ctx context.Context, pluginID string, p call.Caller, req call.ListSnapshotsRequest) ([]call.Snapshot, error) {
	var all []call.Snapshot
	err := pages(ctx, pluginID, call.ListSnapshots, func(token string) (string, bool, error) {
		if token == "" {
			all = nil // this may be a second attempt, so drop the entries of the first one
		}
		req.Token = token
		page, err := call.Do(ctx, p, req)
		all = append(all, page.Entries...)
		return page.Next, false, err
	})
	if err != nil {
		return nil, err
	}

	return all, nil
}

// progress holds a progress message for each unfinished snapshot, keyed by its intent.
type progress struct {
	mu    sync.Mutex
	texts map[string]string
}

// set stores the progress of a snapshot. An empty text deletes the entry.
func (p *progress) set(key, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.texts == nil {
		p.texts = map[string]string{}
	}
	p.texts[key] = text
	if text == "" {
		delete(p.texts, key)
	}
}

func (p *progress) get(key string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.texts[key]
}
