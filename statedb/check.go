package statedb

import (
	"errors"
	"fmt"
	"os"
	"time"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/volmgr/volume"
)

// Check tests whether the file follows its own rules. The page structure must be sound, and every
// value must be readable. Every claim must have its volume, every storage volume must occur once,
// and every record must be consistent. No path may be used twice. Check opens the file itself, so
// no other process may use the file at the same time.
func Check(path string) (err error) {
	if _, err := os.Stat(path); err != nil {
		return err
	}

	b, err := openBolt(path, time.Second)
	if err != nil {
		return judge(path, b.info, err)
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	defer guard(func(p any) { err = fmt.Errorf("the file is damaged: %v", p) })()

	return b.View(func(tx *bbolt.Tx) error {
		if _, err := schema(tx, schemaOf(migrations)); err != nil {
			return err
		}
		s, err := read(tx)
		errs := []error{err, s.check()}
		for err := range tx.Check() {
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}

// check tests the records against the rules of the domain.
func (s *state) check() error {
	var errs []error
	note := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	users := map[string]string{}
	use := func(id, what, path string) {
		if path == "" {
			return
		}
		user := fmt.Sprintf("volume %q as %s", id, what)
		if other, ok := users[path]; ok {
			note("%s is used by %s and by %s", path, other, user)
		}
		users[path] = user
	}

	for id, r := range s.volumes {
		if err := r.Check(); err != nil {
			note("volume %q: %w", id, err)
		}
		if r.Held() {
			use(id, "its staging path", r.Node.StagingPath)
		}
		for _, c := range r.Claims {
			use(id, fmt.Sprintf("the target of %q", c.Alloc), c.Target)
			use(id, fmt.Sprintf("the directory of %q", c.Alloc), c.At)
		}
	}

	for key, d := range s.debts {
		if v := d.Record.Volume; storageKey(v.Driver, v.ExternalID) != key {
			note("the debt of volume %q is stored under %q", v.ID, key)
		}
		if err := d.Whole().Check(); err != nil {
			note("the debt of volume %q: %w", d.Record.Volume.ID, err)
		}
	}

	for id, p := range s.plugins {
		if err := errors.Join(volume.CheckPluginID(p.Of()), unless(p.ID == id, "it is stored under %q", id)); err != nil {
			note("plugin %q: %w", p.ID, err)
		}
	}

	for key, d := range s.registered {
		if err := errors.Join(volume.CheckPluginID(d.ID), unless(registeredKey(&d) == key, "it is stored under %q", key)); err != nil {
			note("registered plugin %q: %w", d.ID, err)
		}
	}

	for key, i := range s.snapshots {
		if err := errors.Join(i.Check(), unless(i.Key() == key, "it is stored under %q", key)); err != nil {
			note("snapshot %q: %w", i.Name, err)
		}
	}

	for key, n := range s.names {
		if err := errors.Join(n.Check(), unless(n.Key() == key, "it is stored under %q", key)); err != nil {
			note("name %q of a snapshot: %w", n.Name, err)
		}
	}

	for key, v := range s.runtimes {
		if err := errors.Join(v.Check(), unless(v.Key() == key, "it is stored under %q", key)); err != nil {
			note("volume %q of %s: %w", v.Name, v.Runtime, err)
		}
	}

	return errors.Join(errs...)
}

func unless(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// Verify reads the file of an open database again and checks it against the rules of Check. It
// leaves out bbolt's page structure, which is only safe to check without concurrent writes. It may
// block on slow storage. If the last commit failed, it returns that fault and does not read the
// file.
func (db *DB) Verify() (err error) {
	if err := db.Fault(); err != nil {
		return err
	}
	defer guard(func(p any) { err = fmt.Errorf("the file is damaged: %v", p) })()

	var s state
	if err := db.view(func(tx *bbolt.Tx) (err error) {
		s, err = read(tx)
		return err
	}); err != nil {
		return fmt.Errorf("the file cannot be read: %w", err)
	}
	return s.check()
}
