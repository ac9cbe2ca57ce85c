package statedb

import (
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/volmgr/volume"
)

// check checks all values against the rules of the domain.
func (s *state) check() error {
	var errs []error
	users := map[string]string{}
	use := func(id, what, path string) {
		user := fmt.Sprintf("volume %q as %s", id, what)
		if other, ok := users[path]; ok {
			errs = append(errs, fmt.Errorf("%s is used by %s and by %s", path, other, user))
		}
		users[path] = user
	}

	for _, r := range (View{s}).Volumes() {
		id := r.Volume.ID
		if err := r.Check(); err != nil {
			errs = append(errs, fmt.Errorf("volume %q: %w", id, err))
		}
		for _, p := range r.Places() {
			switch p.Kind {
			case volume.PlaceStaged:
				use(id, "its staging path", p.Path)
			case volume.PlacePublished:
				use(id, fmt.Sprintf("the target of %q", p.Alloc), p.Path)
			case volume.PlaceBound:
				use(id, fmt.Sprintf("the directory of %q", p.Alloc), p.Path)
			default: // a new claim may use the path again
			}
		}
	}

	for _, k := range kinds {
		for key, v := range s.values[k.name()] {
			if err := k.checkStored(key, v); err != nil {
				errs = append(errs, err)
			}
		}
	}

	return errors.Join(errs...)
}

// verify reads the file again and checks its values. It does not check bbolt's page structure,
// because such a check is safe only without concurrent writes.
func (f *file) verify() (err error) {
	defer guard(func(p any) { err = fmt.Errorf("the file is damaged: %v", p) })()

	var s *state
	if err := f.view(func(tx *bbolt.Tx) (err error) {
		s, err = read(tx)
		return err
	}); err != nil {
		return fmt.Errorf("the file cannot be read: %w", err)
	}
	return s.check()
}
