// Package backup recovers the state database. It renames a damaged database, and fills a new one
// from the notes beside the mounts and from an automatic copy. It also takes the backups that an
// operator requests, and restores them.
package backup

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// Open opens the state database at a path. If the database is damaged, Open renames it and creates
// a new one, which an Adoption then fills. In this case it also returns the damage.
func Open(path string, o statedb.Options, log hclog.Logger) (db *statedb.DB, why string, err error) {
	db, err = statedb.Open(path, o)
	var damage *statedb.Damage
	if !errors.As(err, &damage) {
		return db, "", err
	}

	kept, err := damage.SetAside()
	if err != nil {
		return nil, "", errors.Join(damage, err)
	}

	why = damage.Why.Error()
	if first, more, ok := strings.Cut(why, "\n"); ok { // why has one line for each bad value
		why = fmt.Sprintf("%s, and %d more", first, 1+strings.Count(more, "\n"))
	}
	log.Error("the state database is damaged; it is kept, and a new one is made", "why", why, "kept", kept)
	db, err = statedb.Open(path, o)
	return db, why, err
}

// Adopted returns the number of a volume's adopted claims.
func Adopted(r volume.Record) (n int) {
	for _, c := range r.Claims {
		if c.Adopted {
			n++
		}
	}

	return n
}
