package agent

import (
	"context"
	"fmt"

	"github.com/volagent/volagent/agent/claim"
	"github.com/volagent/volagent/agent/drain"
	"github.com/volagent/volagent/agent/identity"
	"github.com/volagent/volagent/agent/plugintest"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// newDrain connects the drain service with this host.
func (a *agent) newDrain(claims *claim.Service, host *mount.Host) *drain.Service {
	return &drain.Service{
		Store: drainStore{records.WithLeftovers{Store: a.db}}, Claims: claims, Queue: a.queue, Owners: a.owners, Events: a.events.Add, Halt: a.halt,
		Strays: func() []volume.Occupant { return a.strays(host) },
	}
}

// drainStore adapts the state database for drain.
type drainStore struct{ records.WithLeftovers }

// SetDraining stores whether the host is being drained.
func (s drainStore) SetDraining(ctx context.Context, draining bool) (changed bool, err error) {
	err = s.Update(ctx, func(tx *statedb.Tx) error {
		n := tx.Node()
		if changed = n.Draining != draining; changed {
			n.Draining = draining
			tx.PutNode(n)
		}

		return nil
	})

	return changed && err == nil, err
}

// strays returns the mounts below the mount root that no record explains, and the volumes of plugin
// tests. It is called when no record has a mount.
func (a *agent) strays(host *mount.Host) (all []volume.Occupant) {
	for id, left := range a.usage.Scratches() {
		words := "a test of plugin %q left it, and it is not undone"
		if a.tests.Testing(id) {
			words = "a test of plugin %q has it"
		}
		all = append(all, volume.Occupant{Volume: plugintest.Name(left), Message: fmt.Sprintf(words, id), Command: volume.Command("volctl plugin test %s", id)})
	}

	if len(all) > 0 {
		return all
	}

	entries, err := identity.MountsBelow(host, a.c.mountRoot())
	if err != nil {
		return append(all, volume.Occupant{Message: fmt.Sprintf("the mount table cannot be read: %v", err), Command: "findmnt"})
	}

	for _, e := range entries {
		all = append(all, volume.Occupant{
			Message: fmt.Sprintf("%s is mounted (%s), and no record explains it", e.Path, e.Identity.FSType), Command: volume.Command("umount %s", e.Path),
		})
	}

	return all
}
