package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// stateFile is the state database, in the data dir.
const stateFile = "state.db"

// openDB opens the state database. One that is damaged is set aside, and a new
// one is made; adopt then fills it.
func (a *agent) openDB(o statedb.Options) (*statedb.DB, error) {
	path := filepath.Join(a.c.DataDir, stateFile)
	db, err := statedb.Open(path, o)
	var damage *statedb.Damage
	if !errors.As(err, &damage) {
		return db, err
	}
	kept, err := damage.SetAside()
	if err != nil {
		return nil, errors.Join(damage, err)
	}
	a.damage = damage.Why.Error()
	if first, more, ok := strings.Cut(a.damage, "\n"); ok { // one line a bad value
		a.damage = fmt.Sprintf("%s, and %d more", first, 1+strings.Count(more, "\n"))
	}
	a.log.Error("the state database is damaged; it is kept, and a new one is made", "why", a.damage, "kept", kept)
	return statedb.Open(path, o)
}

// adopt fills a new state database with what an earlier one is known to have
// held: volumes and claims that were noted beside their mounts. It unmounts
// nothing and sends no call. It returns why no call may be sent, if that is so;
// the database then stays new, so that the next start adopts.
func (a *agent) adopt(ctx context.Context, host *mount.Host, steps *volmgr.Manager) (halt string, err error) {
	if a.db.Node() != (statedb.Node{}) {
		return "", nil
	}
	notes, bad := steps.Notes(nil)
	for _, err := range bad {
		a.log.Warn("a note is left out", "error", err)
	}
	kept, err := filepath.Glob(filepath.Join(a.c.DataDir, "state.db.damaged-*"))
	if err != nil || len(notes)+len(kept) == 0 {
		return "", err // a first start
	}
	for _, n := range notes {
		switch {
		case n.Boot != host.Boot():
		case n.DataDir != a.c.DataDir:
			return "", volume.Errorf(volume.ErrRefused, "the state database is lost, and this data dir was at %s when volume %q was mounted below it; now it is at %s",
				n.DataDir, n.Record.Volume.ID, a.c.DataDir).WithHint("move it back, or start with --data-dir %s", n.DataDir)
		case n.Namespace != host.Namespace():
			a.node.ID = n.NodeID
			return fmt.Sprintf("the state database is lost, and this agent runs in another mount namespace than the one where volume %q was mounted in this boot; "+
				"start it as the service does, without options that give it a namespace of its own", n.Record.Volume.ID), nil
		}
	}
	loss := statedb.Loss{At: time.Now().UTC(), Why: a.damage}
	if len(kept) > 0 {
		loss.Kept = slices.Max(kept) // the newest, by its name
	}
	if loss.Why == "" && len(kept) == 0 {
		loss.Why = "it was not there"
	}
	return "", a.fill(ctx, steps.Adopt(ctx, notes), nodeIDOf(notes), loss)
}

// nodeIDOf is the node id as the newest note says, empty if there is none.
func nodeIDOf(notes []volume.Note) string {
	id, newest := "", time.Time{}
	for _, n := range notes {
		if id == "" || n.Claim.Since.After(newest) {
			id, newest = n.NodeID, n.Claim.Since
		}
	}
	return id
}

// fill stores what was adopted, in one commit.
func (a *agent) fill(ctx context.Context, records []volume.Record, nodeID string, loss statedb.Loss) error {
	var evs []volume.Event
	err := a.db.Update(ctx, func(tx *statedb.Tx) error {
		evs, loss.Volumes, loss.Claims = nil, 0, 0
		for _, r := range records {
			if other, ok := tx.VolumeOf(r.Volume.Driver, r.Volume.ExternalID); ok {
				a.log.Warn("the notes of a volume are left out: they are about a storage volume that another one has", "volume", r.Volume.ID, "other", other)
				continue
			}
			tx.PutVolume(r)
			loss.Volumes++
			claims := adopted(r)
			loss.Claims += claims
			evs = append(evs, volume.Event{
				Type: "volume-adopted", Volume: r.Volume.ID, Plugin: r.Volume.PluginID,
				Message: fmt.Sprintf("adopted with %d claims after the state database was lost", claims),
			})
		}
		tx.PutNode(statedb.Node{ID: nodeID, Loss: loss})
		return nil
	})
	if err != nil {
		return err
	}
	if nodeID == "" {
		a.log.Warn("the node id was lost with the state database; it is what the configuration says, or the host name")
	}
	a.log.Warn("the state database is made anew", "why", loss.Why, "kept", loss.Kept, "volumes", loss.Volumes, "claims", loss.Claims)
	a.events.Add(evs...)
	return nil
}

// adopted counts the claims of a volume that were adopted.
func adopted(r volume.Record) (n int) {
	for _, c := range r.Claims {
		if c.Adopted {
			n++
		}
	}
	return n
}

// lost describes the loss of the state database, while it matters: some of what
// was adopted is still there, or the damaged file is.
func (a *agent) lost() (p api.Problem, ok bool) {
	loss := a.db.Node().Loss
	if loss.At.IsZero() {
		return p, false
	}
	held := 0
	for _, r := range a.db.Volumes() {
		held += adopted(r)
	}
	p = api.Problem{Subject: "agent", Message: "the state database was lost and made anew " + loss.At.Format(time.RFC3339)}
	if loss.Why != "" {
		p.Message += ": " + loss.Why
	}
	if loss.Kept != "" {
		if _, err := os.Lstat(loss.Kept); err == nil {
			p.Message += "; the damaged file is kept as " + loss.Kept
			p.Command, ok = "rm "+loss.Kept, true
		}
	}
	p.Message += fmt.Sprintf("; adopted: %d volumes with %d claims, of which %d are held", loss.Volumes, loss.Claims, held)
	if held > 0 {
		p.Command, ok = "volctl claim list", true
	}
	return p, ok
}
