package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// Plugins finds the plugins of this host.
type Plugins interface {
	View(pluginID string) plugin.View
	// Restored makes the supervisor read the registered plugins again.
	Restored() error
}

// Owners reports which owners of claims are alive.
type Owners interface {
	volume.Owners
	Watch(o volume.Owner)
	Check(ctx context.Context, owners []volume.Owner)
}

// Queue mounts and unmounts volumes as their claims require.
type Queue interface{ Wake(key string) }

// Reaper detaches claims whose owners have ended.
type Reaper interface{ Freed() }

// Service takes and restores backups for the API.
type Service struct {
	DB      records.Store
	Node    statedb.Node
	Halt    string // the reason why nothing can be restored; empty in normal operation
	Plugins Plugins
	Secrets func(volume.Volume) (call.Secrets, error)
	Owners  Owners
	Queue   Queue
	Reaper  Reaper
	Events  func(...volume.Event)
}

// Backup returns a copy of the present state.
func (s *Service) Backup(ctx context.Context) (io.ReadCloser, int64, error) {
	b, err := s.DB.Backup(ctx)
	if err != nil {
		return nil, 0, err
	}
	return b, b.Size, nil
}

// Restore adds those contents of a backup that are missing on this host, in one transaction. It
// never changes existing records. With dry it only reports the changes.
func (s *Service) Restore(ctx context.Context, r io.Reader, dry bool) (api.Restore, error) {
	if s.Halt != "" {
		return api.Restore{}, volume.Errorf(volume.ErrRefused, "cannot restore: %s", s.Halt)
	}

	from, err := s.DB.ReadBackup(r)
	if err != nil {
		return api.Restore{}, err
	}

	re := &restoring{s: s, from: from, notes: s.unreadable(from.Volumes()), others: statedb.Registered.All(s.DB)}
	re.compare()
	if re.why == "" {
		s.askAfter(ctx, from.Volumes())
	}
	undo := errors.New("dry run")
	err = s.DB.Update(ctx, func(tx *statedb.Tx) error {
		if re.run(tx); dry {
			return undo
		}
		return nil
	})

	out := api.Restore{Node: from.Node().ID, Taken: from.Taken, SameNode: re.why == "", Why: re.why, DryRun: dry, Items: re.items}

	switch {
	case errors.Is(err, undo):
		return out, nil
	case err != nil:
		return api.Restore{}, err
	}

	return out, re.begin()
}

// restoring is one restore. Each call of run resets the fields from tx on.
type restoring struct {
	s    *Service
	from statedb.Restorable
	// The reason why only registrations are restored; empty if mounts are restored too.
	why    string
	notes  map[string][]string // hints for the operator, by volume id
	others []plugin.Definition

	tx      *statedb.Tx
	at      time.Time
	items   []api.Restored
	taken   []volume.Record
	plugins map[string]bool // the plugins that are restored
}

// compare checks whether the mounts in the backup belong to this host. If they do not, the stored
// paths and mount identities are not valid here.
func (re *restoring) compare() {
	was, now := re.from.Node(), re.s.Node
	switch {
	case was.ID != now.ID:
		re.why = fmt.Sprintf("it is of node %q, and this is node %q", was.ID, now.ID)
	case was.DataDir != now.DataDir:
		re.why = fmt.Sprintf("it is of the data dir %s, and this one is %s", was.DataDir, now.DataDir)
	case was.Boot == now.Boot && was.Namespace != now.Namespace:
		re.why = "it was taken in another mount namespace of this boot"
	}
}

// unreadable returns, by volume id, the errors for the new volumes whose secrets this host cannot
// read.
func (s *Service) unreadable(volumes []volume.Record) map[string][]string {
	notes := map[string][]string{}
	for _, r := range volumes {
		if _, known := s.DB.Volume(r.Volume.ID); known {
			continue
		}
		if _, err := s.Secrets(r.Volume); err != nil {
			notes[r.Volume.ID] = []string{err.Error()}
		}
	}

	return notes
}

// askAfter determines which owners of the backup's claims are alive.
func (s *Service) askAfter(ctx context.Context, volumes []volume.Record) {
	var owners []volume.Owner
	for _, r := range volumes {
		for _, c := range r.Claims {
			if c.Wanted && c.Owner.Mortal() {
				s.Owners.Watch(c.Keeper())
				owners = append(owners, c.Keeper())
			}
		}
	}

	s.Owners.Check(ctx, owners)
}

// run decides for every item of the backup whether to restore it, and stores the results in tx.
func (re *restoring) run(tx *statedb.Tx) {
	re.tx, re.at, re.items, re.taken, re.plugins = tx, time.Now(), []api.Restored{}, nil, map[string]bool{}
	registered, volumes := statedb.Registered.All(re.from), re.from.Volumes()
	for _, d := range registered {
		if !re.s.Plugins.View(d.ID).Known {
			re.plugins[d.ID] = true
		}
	}

	slices.SortFunc(volumes, func(a, b volume.Record) int { return cmp.Compare(a.Volume.ID, b.Volume.ID) })
	for _, r := range volumes {
		re.volume(r)
	}

	for _, d := range registered {
		re.plugin(d)
	}

	for _, i := range statedb.Snapshots.All(re.from) {
		re.snapshot(i)
	}

	for _, n := range statedb.SnapshotNames.All(re.from) {
		statedb.SnapshotNames.Put(re.tx, n)
	}

	for _, d := range statedb.Leftovers.All(re.from) {
		re.leftover(d)
	}

	for _, v := range statedb.RuntimeVolumes.All(re.from) {
		re.runtime(v)
	}
}

func (re *restoring) say(kind, id, outcome string, notes ...string) {
	re.items = append(re.items, api.Restored{Kind: kind, ID: id, Outcome: outcome, Notes: notes})
}

func (re *restoring) volume(r volume.Record) {
	v := r.Volume
	if here, ok := re.tx.Volume(v.ID); ok {
		outcome := api.OutcomePresent
		if here.Volume.Driver != v.Driver || here.Volume.ExternalID != v.ExternalID {
			outcome = api.OutcomeRefused
		}
		re.say("volume", v.ID, outcome, volume.Differences(here.Volume, v)...)
		return
	}
	if why := re.barred(v); why != "" {
		re.say("volume", v.ID, api.OutcomeRefused, why)
		return
	}

	now, notes := re.record(r)
	// A generation must not be used twice. Otherwise log entries of an earlier registration could
	// look newer than this record.
	now.Generation = max(r.Generation, uint64(re.at.UnixNano()))
	re.tx.PutVolume(now)
	re.taken = append(re.taken, now)
	item := api.Restored{Kind: "volume", ID: v.ID, Outcome: api.OutcomeRestored, Notes: append(notes, re.notes[v.ID]...)}
	for _, c := range now.Ordered() {
		item.Claims = append(item.Claims, c.Alloc)
	}
	if !re.s.Plugins.View(v.PluginID).Known && !re.plugins[v.PluginID] {
		item.Notes = append(item.Notes, fmt.Sprintf("there is no plugin %q here yet", v.PluginID))
	}
	re.items = append(re.items, item)
}

// barred returns the reason why a volume cannot be registered here, or "".
func (re *restoring) barred(v volume.Volume) string {
	if other, ok := re.tx.VolumeOf(v.Driver, v.ExternalID); ok {
		return fmt.Sprintf("its external_id %q of driver %s is registered here as volume %q", v.ExternalID, v.Driver, other)
	}
	if plugin, ok := (records.Tx{Tx: re.tx}).TestOf(v.Driver, v.ExternalID); ok {
		return fmt.Sprintf("its external_id %q of driver %s is in a test of plugin %q", v.ExternalID, v.Driver, plugin)
	}
	if info := re.s.Plugins.View(v.PluginID).Info; info.Driver != "" && info.Driver != v.Driver {
		return fmt.Sprintf("plugin %q is the driver %s here, and the volume is of %s", v.PluginID, info.Driver, v.Driver)
	}

	return ""
}

// record returns the record to store for a new volume, and notes about the data that is not
// restored.
func (re *restoring) record(r volume.Record) (now volume.Record, notes []string) {
	now = volume.Record{Volume: r.Volume}
	if re.why == "" { // the backup is from this host, so its directories exist here
		now.Guards, now.GuardDirs = r.Guards, r.GuardDirs
	}
	if !r.Held() {
		return now, nil
	}

	var why string
	full := volume.Restored(r, re.from.Node().Boot != re.s.Node.Boot, re.tx.Node().Draining, re.s.Owners)
	key := statedb.StorageKey(r.Volume.Driver, r.Volume.ExternalID)
	_, owed := statedb.Leftovers.Get(re.tx, key)
	_, there := statedb.Leftovers.Get(re.from, key)

	switch {
	case re.why != "":
		why = re.why
	case owed:
		why = "it was deregistered here by force, which is not undone yet"
	case there: // in the backup, the leftovers prevented all mounts of the volume
		why = "it was deregistered by force before that, which is not undone yet"
	default:
		err := records.Clash(re.tx, volume.Record{}, full)
		if err == nil {
			err = full.Check()
		}
		if err == nil {
			return full, nil
		}

		why = err.Error()
	}

	words := "only its registration is taken"
	if n := len(r.Claims); n > 0 {
		allocs := make([]string, 0, n)
		for _, c := range r.Ordered() {
			allocs = append(allocs, fmt.Sprintf("%q", c.Alloc))
		}
		words += ", without the claims of " + strings.Join(allocs, ", ")
	}

	return now, []string{words + ": " + why}
}

func (re *restoring) plugin(d plugin.Definition) {
	id := strings.TrimSuffix(strings.Join([]string{d.ID, d.Type, d.Instance}, "/"), "//")
	if re.plugins[d.ID] {
		statedb.Registered.Put(re.tx, d)
		re.say("plugin", id, api.OutcomeRestored)
		return
	}

	for _, o := range re.others {
		if o.ID == d.ID && o.Type == d.Type && o.Instance == d.Instance && o.Equal(&d) {
			re.say("plugin", id, api.OutcomePresent)
			return
		}
	}

	re.say("plugin", id, api.OutcomePresent, "it is defined in other words here: "+suggest.Command("volctl plugin status %s", d.ID))
}

func (re *restoring) snapshot(i volume.SnapshotIntent) {
	outcome := api.OutcomePresent
	if _, ok := statedb.Snapshots.Get(re.tx, i.Key()); !ok {
		outcome = api.OutcomeRestored
		statedb.Snapshots.Put(re.tx, i)
	}
	re.say("snapshot", i.Name, outcome)
}

// leftover restores the leftover record of a forced deregister, unless a volume uses the storage or
// the paths that the pending calls would undo.
func (re *restoring) leftover(d statedb.Leftover) {
	r := d.Whole()
	id, booted := r.Volume.ID, re.from.Node().Boot != re.s.Node.Boot
	if _, ok := statedb.Leftovers.Get(re.tx, statedb.StorageKey(r.Volume.Driver, r.Volume.ExternalID)); ok {
		re.say("leftover", id, api.OutcomePresent)
		return
	}
	if re.why != "" {
		re.say("leftover", id, api.OutcomeDropped, "the leftovers of a forced deregister are not on this host: "+re.why)
		return
	}

	if r = volume.Restored(r, booted, false, nil); booted {
		r = volume.NextBoot(r)
	}
	if !r.Held() {
		re.say("leftover", id, api.OutcomeDropped, "nothing is left of it in this boot")
		return
	}
	if user := userOf(re.tx.Volumes(), r); user != "" {
		re.say("leftover", id, api.OutcomeRefused, fmt.Sprintf("volume %q uses the storage of this leftover", user))
		return
	}

	statedb.Leftovers.Put(re.tx, statedb.LeftoverOf(r, d.Since))
	re.taken = append(re.taken, r)
	re.say("leftover", id, api.OutcomeRestored)
}

// userOf returns a volume on this host that uses the storage or a path of a leftover record.
func userOf(all []volume.Record, leftover volume.Record) string {
	paths := volume.Paths([]volume.Record{leftover})
	for _, r := range all {
		same := r.Volume.Driver == leftover.Volume.Driver && r.Volume.ExternalID == leftover.Volume.ExternalID
		uses := same || slices.ContainsFunc(r.Places(), func(p volume.Place) bool { return paths[p.Path] })
		if uses && r.Held() {
			return r.Volume.ID
		}
	}

	return ""
}

// sinceBackup stands for all containers that were started after the backup was taken. They share
// the claim, but the backup does not list them. No container runtime releases this reference, so
// the agent removes it when the volume has no user.
const sinceBackup = "since-the-backup"

// runtime restores the name under which a container runtime knows a volume. It restores a
// container's reference to the volume only if the claim that the container uses was restored too.
func (re *restoring) runtime(v volume.RuntimeVolume) {
	if _, ok := statedb.RuntimeVolumes.Get(re.tx, v.Key()); ok {
		re.say(v.Runtime, v.Name, api.OutcomePresent)
		return
	}

	r, ok := re.tx.Volume(v.VolumeID)
	if !ok {
		re.say(v.Runtime, v.Name, api.OutcomeDropped, fmt.Sprintf("there is no volume %q here", v.VolumeID))
		return
	}

	for _, o := range statedb.RuntimeVolumes.All(re.tx) {
		if o.Runtime == v.Runtime && o.VolumeID == v.VolumeID {
			re.say(v.Runtime, v.Name, api.OutcomeRefused, fmt.Sprintf("%s knows volume %q as %q here", v.Runtime, v.VolumeID, o.Name))
			return
		}
	}

	v = v.Without(func(ref volume.RuntimeRef) bool { return r.Claims[ref.Alloc].Owner != v.Owner() })
	// Podman uses one id for all containers, and docker uses one id for each container.
	shared := v.Runtime == plugin.RuntimeDocker && v.Claimed(v.Runtime)
	if shared && re.from.Node().Boot == re.s.Node.Boot {
		v = v.Mounting(sinceBackup, "", re.at)
	}
	statedb.RuntimeVolumes.Put(re.tx, v)
	re.say(v.Runtime, v.Name, api.OutcomeRestored)
}

// begin tells the queue, the reaper and the supervisor about the restored items.
func (re *restoring) begin() error {
	for _, r := range re.taken {
		if !r.Leftover {
			re.s.Events(volume.Event{
				Type: volume.EventRestored, Volume: r.Volume.ID, Plugin: r.Volume.PluginID,
				Message: fmt.Sprintf("restored from a backup of node %q, with %d claims", re.from.Node().ID, len(r.Claims)),
			})
			re.s.DB.Notes.Update(r, slices.Collect(maps.Keys(r.Claims)))
		}

		re.s.Queue.Wake(r.Key())
	}

	if len(re.taken) > 0 {
		re.s.Reaper.Freed() // the reaper must also watch the owners of the restored claims
	}
	if len(re.plugins) == 0 {
		return nil
	}
	if err := re.s.Plugins.Restored(); err != nil {
		return fmt.Errorf("all is restored, but the plugins are only taken up at the next start: %w", err)
	}

	return nil
}
