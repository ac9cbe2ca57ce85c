package facts

import (
	"errors"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/doctor"
	"github.com/volagent/volagent/statedb"
)

// checkWithin limits the time to check the file of the state database and to query its disk.
const checkWithin = 5 * time.Second

// database collects the facts about the state database.
type database struct {
	file  string
	db    *statedb.DB
	check doctor.Bounded[error]
	disk  doctor.Bounded[unix.Statfs_t]
}

func (d *database) look() doctor.Database {
	out := doctor.Database{Dir: filepath.Dir(d.file), Fault: d.db.Fault(), NoLog: d.db.NoLog()}
	loss := d.db.Node().Loss
	out.Loss = doctor.Loss{At: loss.At, Why: loss.Why, Volumes: loss.Volumes, Claims: loss.Claims, Copy: loss.Copy}
	bad, err := d.check.Run(checkWithin, func() (error, error) { return d.db.Verify(), nil })
	if out.Check = bad; err != nil {
		out.Check = err
	}
	st, err := d.disk.Run(checkWithin, func() (st unix.Statfs_t, err error) { return st, unix.Statfs(filepath.Dir(d.file), &st) })
	size := uint64(st.Frsize) //nolint:gosec // no size is negative
	out.Disk = doctor.Disk{Err: err, Total: st.Blocks * size, Free: st.Bavail * size, Inodes: st.Files, FreeInodes: st.Ffree}
	out.Kept, _ = filepath.Glob(d.file + ".damaged-*") // the patterns are valid
	out.Old, _ = filepath.Glob(d.file + ".schema-*")
	out.Foreign, _ = filepath.Glob(filepath.Join(filepath.Dir(d.file), "state.*.foreign-*"))
	var foreign *statedb.Foreign
	if errors.As(out.Fault, &foreign) {
		out.Refused = foreign.Kept
	}

	return out
}
