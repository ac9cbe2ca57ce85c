package volmgr

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// Copy is the content of an automatic copy of the state database. It contains the host, its
// volumes, and the pending calls of forced deregisters.
type Copy struct {
	NodeID, DataDir, Boot string
	Namespace             uint64
	Records, Debts        []volume.Record
	Plugins               map[string]plugin.Info // answers of the plugins, by plugin id
}

// FromCopy is the part of an automatic copy that the agent can adopt.
type FromCopy struct {
	Proven  []volume.Note   // claims whose recorded mount is present although they have no note
	Records []volume.Record // volumes without a note and without a claim in Proven
	Debts   []volume.Record
	// LeftOut lists the volumes that the agent cannot adopt, each with the reason.
	LeftOut []string
}

// FromCopy compares an automatic copy with the mount table and returns the part that the agent can
// adopt. It omits a volume that has a mount which neither a note nor the copy explains. If the
// agent undid such a volume, it could harm a process that uses the mount. FromCopy changes nothing
// on the host.
func (m *Manager) FromCopy(ctx context.Context, c Copy, notes []volume.Note) (out FromCopy, err error) {
	ctx, cancel := context.WithTimeout(ctx, adoptWithin)
	defer cancel()
	entries, err := m.o.Host.Under(m.o.Root)
	if err != nil {
		return out, err
	}

	mounted := map[string]string{} // maps the last component of each mount point to the mount point
	for _, e := range entries {
		mounted[filepath.Base(e.Path)] = e.Path
	}

	leaveOut := func(what, id, path string) {
		out.LeftOut = append(out.LeftOut, fmt.Sprintf("%s %q: %s is mounted, and nothing explains it", what, id, path))
	}

	known, noted := map[string]bool{}, map[string]bool{} // sets of volume ids and of the paths of notes
	for _, n := range notes {
		known[n.Record.Volume.ID], noted[m.NotePath(n.Record.Volume, n.Claim.Alloc)] = true, true
	}

	booted := c.Boot != m.o.Host.Boot()
	for i, o := range m.observeAll(ctx, c.Records, entries, booted) {
		r := c.Records[i]
		proven := m.proven(r, o, c, noted)
		path, is := mounted[volume.VolumeComponent(r.Volume.ID)]

		switch {
		case known[r.Volume.ID] || len(proven) > 0 && !booted:
			out.Proven = append(out.Proven, proven...)
		case is:
			leaveOut("volume", r.Volume.ID, path)
		default:
			out.Records = append(out.Records, volume.Copied(r, o, c.Plugins[r.Volume.PluginID], booted))
		}
	}

	for i, o := range m.observeAll(ctx, c.Debts, entries, booted) {
		r := c.Debts[i]
		if paths := volume.PathsOfOtherMounts(r, o); len(paths) > 0 {
			leaveOut("the leftovers of the forced deregister of volume", r.Volume.ID, paths[0])
			continue
		}
		if r = volume.Restored(r, booted, false, nil); booted {
			r = volume.NextBoot(r)
		}
		if r.Held() {
			out.Debts = append(out.Debts, r)
		}
	}

	return out, nil
}

// proven returns a note for each claim that has no note, but whose recorded mount is present.
func (m *Manager) proven(r volume.Record, o volume.Observed, c Copy, noted map[string]bool) (proven []volume.Note) {
	for _, claim := range r.Ordered() {
		is := o.Targets[claim.Alloc].Is(claim.Mount) || o.Binds[claim.Alloc].Is(claim.BoundMount)
		note, mounted := volume.Noted(r, claim.Alloc)
		if is && mounted && !noted[m.NotePath(r.Volume, claim.Alloc)] {
			note.NodeID, note.DataDir, note.Boot, note.Namespace = c.NodeID, c.DataDir, c.Boot, c.Namespace
			proven = append(proven, note)
		}
	}

	return proven
}

// observeAll observes the paths of several records concurrently. After a reboot, it observes
// nothing, because no volume can still be mounted.
func (m *Manager) observeAll(ctx context.Context, records []volume.Record, entries []mount.Entry, booted bool) []volume.Observed {
	seen := make([]volume.Observed, len(records))
	if booted {
		return seen
	}

	table := func() ([]mount.Entry, error) { return entries, nil }
	var wg sync.WaitGroup
	slots := make(chan struct{}, adoptAtOnce)

	for i, r := range records {
		if !r.Held() {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			seen[i] = recognise(r, m.Observe(ctx, r, volume.Glimpse{}), table)
			<-slots
		})
	}

	wg.Wait()
	return seen
}
