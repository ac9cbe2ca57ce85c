package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/volagent/volagent/agent/backup"
	"github.com/volagent/volagent/agent/event"
	"github.com/volagent/volagent/agent/identity"
	"github.com/volagent/volagent/agent/notes"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/agent/secret"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/mount"
)

// openState creates the directories and opens the files of the data dir, which only one agent can
// have open. If the state database was lost, openState fills a new one from the notes and copies.
func (a *Agent) openState(ctx context.Context) error {
	// Services that use volumes must be able to enter these directories to reach their volumes.
	for _, dir := range []string{a.c.DataDir, a.c.MountRoot()} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("cannot make the data dir: %w", err)
		}
	}

	// If the data dir is read-only, it keeps the mode that an earlier agent set.
	if err := os.Chmod(a.c.DataDir, 0o711); err != nil && !errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("cannot open the data dir to the users of volumes: %w", err)
	}

	db, damage, err := backup.Open(a.c.StateFile(), statedb.Options{Tap: a.seams.Tap, Warn: func(message string) { a.log.Error(message) }}, a.log)
	if err != nil {
		return err
	}

	a.db = records.Store{DB: db, Reserved: &records.Reservations{}}
	if err := db.Fault(); err != nil {
		a.log.Error("the state database cannot be written: nothing can be claimed or changed; claims can be detached, which is kept only in memory. Mount the data dir for writing", "error", err)
	}
	if err := db.NoLog(); err != nil {
		a.log.Warn("cannot open state.log; every claim now waits for a disk sync. Remove the file in its place and restart the agent", "path", filepath.Join(a.c.DataDir, "state.log"), "error", err)
	}

	a.openEvents()
	a.secrets = secret.Resolver{Allows: a.c.Cluster.Allows, Sealer: &secret.Sealer{
		KeyFile: a.c.KeyFile(),
		Made: func(path string) {
			a.log.Info("made the key that seals secrets; sealed secrets are lost without it, so keep a copy of it, apart from the copies of the data dir", "file", path)
		},
	}}

	if a.host, err = mount.New(); err != nil {
		return err
	}
	return a.adopt(ctx, damage)
}

// openEvents opens the event history in the data dir.
func (a *Agent) openEvents() {
	log := a.log.Named("event")
	keep, err := a.c.KeepEvents()
	if err != nil {
		keep = 0 // the configuration has been validated; 0 means the default
	}
	a.events = event.Open(event.Options{
		Dir: filepath.Join(a.c.DataDir, "events"), Keep: keep,
		Told: func(e event.Event) { event.Tell(log, e) },
		Warn: func(message string, err error) { log.Warn(message, "error", err) },
	})
}

// adopt fills the new state database if the previous one was lost.
func (a *Agent) adopt(ctx context.Context, damage string) (err error) {
	a.was = a.db.Node()
	a.node = a.was
	lost := backup.Adoption{
		DB: a.db, Steps: a.hostSteps(), Host: a.host, DataDir: a.c.DataDir, Damage: damage, Events: a.events.Add, Log: a.log,
	}

	var lostID string
	if a.halt, lostID, err = lost.Run(ctx); a.halt != "" {
		a.node.ID = lostID
	}
	return err
}

// hostSteps returns a Manager that examines the host but does not call any plugin.
func (a *Agent) hostSteps() *volmgr.Manager {
	return volmgr.New(volmgr.Options{Root: a.c.MountRoot(), Host: a.host})
}

// recall determines the identity of this host, and whether the agent may call plugins. It then
// updates the records according to how the last agent stopped.
func (a *Agent) recall(ctx context.Context) (err error) {
	if a.halt == "" {
		e, err := identity.ClaimRuntimeDir(ctx, a.c.Dirs(), a.was.DataDir, a.host, a.log)
		if err != nil {
			return err
		}
		if !e.Empty() {
			a.otherDataDir, a.halt = e.DataDir, e.Said()
		}
	}

	if a.halt == "" {
		if a.node, a.halt, err = identity.Identify(a.db, a.c.NodeID, a.c.DataDir, a.host); err != nil {
			return err
		}
	}

	a.db.Notes = notes.New(notes.Options{Records: a.db.DB, Files: a.hostSteps(), NodeID: a.node.ID, DataDir: a.c.DataDir, Log: a.log})
	if a.halt != "" {
		return nil // the agent does no work, so the records do not change
	}

	switch err := a.db.Reload(ctx, a.node, identity.Ended(a.was, a.node)); {
	case err == nil:
		return nil
	case a.was.ID == "":
		return err
	default:
		// The agent starts even if the disk is full, because it can still report the problem and
		// detach claims.
		a.log.Error("cannot note who this host is in this boot", "error", err)
		return nil
	}
}
