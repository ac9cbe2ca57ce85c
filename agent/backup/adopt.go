package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// recovery holds the sources from which a lost state database is rebuilt. The notes beside the
// mounts are up to date. The automatic copy may be minutes old.
type recovery struct {
	notes []volume.Note
	from  statedb.Restorable // the automatic copy; zero if there is none
	took  volmgr.FromCopy
	loss  statedb.Loss
}

// Host reads the state of this host during the current boot.
type Host interface {
	Boot() string
	Namespace() uint64
}

// Adoption fills a new state database from the notes and from the automatic copy of the lost
// database.
type Adoption struct {
	DB      records.Store
	Steps   *volmgr.Manager
	Host    Host
	DataDir string
	Damage  string // the damage of the lost database, as Open returned it
	Events  func(...volume.Event)
	Log     hclog.Logger
}

// Run rebuilds the records of volumes if the state database is new, except at the first start of an
// agent. It unmounts nothing and sends no call to a plugin. If the agent must not send any call,
// Run returns the reason in halt, and the node id of the lost database. The database then stays
// empty, so that the agent tries again at its next start.
func (a Adoption) Run(ctx context.Context) (halt, nodeID string, err error) {
	if a.DB.Node() != (statedb.Node{}) {
		return "", "", nil
	}

	var re recovery
	var bad []error
	re.notes, bad = a.Steps.Notes(nil)
	for _, err := range bad {
		a.Log.Warn("a note is left out", "error", err)
	}
	kept, err := filepath.Glob(filepath.Join(a.DataDir, "state.db.damaged-*"))
	if err != nil || len(re.notes)+len(kept) == 0 && !a.DB.HasCopies() {
		return "", "", err // at the first start of an agent, no database is lost
	}

	if re.from, err = a.DB.LastCopy(); err != nil && !errors.Is(err, os.ErrNotExist) {
		a.Log.Error("no automatic copy of the lost state database can be used", "error", err)
	}
	for _, o := range re.origins() {
		switch {
		case o.boot != a.Host.Boot():
		case o.dataDir != a.DataDir:
			return "", "", volume.Errorf(volume.ErrRefused, "the state database is lost, and this data dir was at %s when volume %q was mounted below it; now it is at %s",
				o.dataDir, o.volume, a.DataDir).WithHint("move it back, or start with --data-dir %s", o.dataDir)
		case o.namespace != a.Host.Namespace():
			return fmt.Sprintf("the state database is lost, and this agent runs in another mount namespace than the one where volume %q was mounted in this boot; "+
				"start it as the service does, without options that give it a namespace of its own", o.volume), o.node, nil
		}
	}

	re.loss = statedb.Loss{At: time.Now().UTC(), Why: a.Damage, Copy: re.from.Taken}
	if len(kept) > 0 {
		re.loss.Kept = slices.Max(kept) // the names sort by time, so this is the newest file
	}
	if re.loss.Why == "" && len(kept) == 0 {
		re.loss.Why = "it was not there"
	}
	if re.took, err = a.Steps.FromCopy(ctx, re.copy(), re.notes); err != nil {
		return "", "", err
	}

	for _, why := range re.took.LeftOut {
		a.Log.Warn("left out of the automatic copy: " + why)
	}

	return "", "", a.fill(ctx, a.Steps.Adopt(ctx, slices.Concat(re.notes, re.took.Proven)), re)
}

// origin identifies where a volume was mounted: node, boot, data dir and mount namespace.
type origin struct {
	volume, node, boot, dataDir string
	namespace                   uint64
}

// origins returns the origins of all volumes that were, or may have been, mounted.
func (re *recovery) origins() (all []origin) {
	for _, n := range re.notes {
		all = append(all, origin{n.Record.Volume.ID, n.NodeID, n.Boot, n.DataDir, n.Namespace})
	}
	node := re.from.Node()
	for _, r := range re.from.Volumes() {
		if r.Held() {
			all = append(all, origin{r.Volume.ID, node.ID, node.Boot, node.DataDir, node.Namespace})
		}
	}

	return all
}

// copy returns the automatic copy in a form that can be compared with the mount table.
func (re *recovery) copy() volmgr.Copy {
	node := re.from.Node()
	c := volmgr.Copy{NodeID: node.ID, DataDir: node.DataDir, Boot: node.Boot, Namespace: node.Namespace, Records: re.from.Volumes(), Plugins: map[string]plugin.Info{}}
	for _, p := range statedb.Plugins.All(re.from) {
		if info := c.Plugins[p.Of()]; !info.Caps.Attach {
			c.Plugins[p.Of()] = p.Info
		}
	}

	c.Debts = records.Leftovers(re.from)
	return c
}

// nodeID returns the node id in the newest note. Without notes, it returns the node id in the copy.
// If there is no copy either, it returns an empty string.
func (re *recovery) nodeID() string {
	id, newest := "", time.Time{}
	for _, n := range re.notes {
		if id == "" || n.Claim.Since.After(newest) {
			id, newest = n.NodeID, n.Claim.Since
		}
	}

	return cmp.Or(id, re.from.Node().ID)
}

// fill stores the adopted volumes and the contents of the copy in one commit.
func (a Adoption) fill(ctx context.Context, adoptions []volume.Record, re recovery) error {
	var evs []volume.Event
	loss := re.loss
	err := a.DB.Update(ctx, func(tx *statedb.Tx) error {
		evs, loss.Volumes, loss.Claims = nil, 0, 0
		for _, r := range slices.Concat(adoptions, re.took.Records) {
			if other, ok := tx.VolumeOf(r.Volume.Driver, r.Volume.ExternalID); ok {
				a.Log.Warn("what is known of a volume is left out: it is about a storage volume that another one has", "volume", r.Volume.ID, "other", other)
				continue
			}

			tx.PutVolume(r)
			loss.Volumes++
			claims := Adopted(r)
			loss.Claims += claims

			evs = append(evs, volume.Event{
				Type: volume.EventVolumeAdopted, Volume: r.Volume.ID, Plugin: r.Volume.PluginID,
				Message: fmt.Sprintf("adopted with %d claims after the state database was lost", claims),
			})
		}

		re.fillRest(tx)
		tx.PutNode(statedb.Node{ID: re.nodeID(), Draining: re.from.Node().Draining, Loss: loss})
		return nil
	})
	if err != nil {
		return err
	}

	if re.nodeID() == "" {
		a.Log.Warn("the node id was lost with the state database; the agent uses node_id of the configuration, or the host name")
	}
	a.Log.Warn("the state database is made anew", "why", loss.Why, "kept", loss.Kept, "copy", loss.Copy, "volumes", loss.Volumes, "claims", loss.Claims)
	a.Events(evs...)
	return nil
}

// fillRest stores the contents of a copy other than volumes. For a plugin, it stores the registered
// definition and the last answers, but not the process. The supervisor finds the process by its
// socket.
func (re *recovery) fillRest(tx *statedb.Tx) {
	for _, d := range statedb.Registered.All(re.from) {
		statedb.Registered.Put(tx, d)
	}
	for _, p := range statedb.Plugins.All(re.from) {
		if p.Plugin == "" { // without a process, the record of a plugin with a single part contains nothing useful
			p.Process, p.Definition = plugin.Process{}, nil
			statedb.Plugins.Put(tx, p)
		}
	}

	for _, i := range statedb.Snapshots.All(re.from) {
		statedb.Snapshots.Put(tx, i)
	}
	for _, v := range statedb.RuntimeVolumes.All(re.from) {
		if _, ok := tx.Volume(v.VolumeID); ok {
			statedb.RuntimeVolumes.Put(tx, v.Without(func(volume.RuntimeRef) bool { return true }))
		}
	}

	all := tx.Volumes()
	for _, r := range re.took.Debts {
		if userOf(all, r) == "" {
			statedb.Leftovers.Put(tx, statedb.LeftoverOf(r, re.since(r)))
		}
	}
}

// since returns the time of the forced deregister that caused a leftover record in the copy.
func (re *recovery) since(r volume.Record) time.Time {
	if d, ok := statedb.Leftovers.Get(re.from, statedb.StorageKey(r.Volume.Driver, r.Volume.ExternalID)); ok {
		return d.Since
	}
	return re.from.Taken
}
