package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// stateFile is the name of the state database in the data dir.
const stateFile = "state.db"

// openDB opens the state database. It moves a damaged one aside and creates a new one, which adopt
// then fills.
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
	if first, more, ok := strings.Cut(a.damage, "\n"); ok { // one line for each bad value
		a.damage = fmt.Sprintf("%s, and %d more", first, 1+strings.Count(more, "\n"))
	}
	a.log.Error("the state database is damaged; it is kept, and a new one is made", "why", a.damage, "kept", kept)
	return statedb.Open(path, o)
}

// adopted returns the number of a volume's adopted claims.
func adopted(r volume.Record) (n int) {
	for _, c := range r.Claims {
		if c.Adopted {
			n++
		}
	}

	return n
}

// lost describes the loss of the state database, as long as an adopted claim or the damaged file
// still exists.
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
			p.Command, ok = suggest.Command("rm %s", loss.Kept), true
		}
	}

	if !loss.Copy.IsZero() {
		p.Message += "; volumes, plugins and pending calls are those of an automatic copy of " + loss.Copy.Format(time.RFC3339)
	}
	p.Message += fmt.Sprintf("; adopted: %d volumes with %d claims, of which %d are held", loss.Volumes, loss.Claims, held)
	if held > 0 {
		p.Command, ok = "volctl claim list", true
	}

	return p, ok
}
