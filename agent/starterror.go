package agent

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/volume"
)

// startError is the file that tells volctl why the agent does not start. Where systemd keeps the
// socket, volctl would otherwise wait for an agent that never answers.
//
// A running agent holds a lock on the file, so that another one that fails beside it, with a
// mistake of its own, does not make volctl give up.
type startError struct{ f *os.File }

// openStartError empties the file, if no agent runs. It returns nil where there is no such
// directory: nothing may be made from a configuration that is wrong.
func openStartError(socket string) *startError {
	if !filepath.IsAbs(socket) {
		return nil
	}
	const flags = os.O_RDWR | os.O_CREATE | unix.O_NOFOLLOW | unix.O_NONBLOCK
	f, err := os.OpenFile(api.StartError(socket), flags, 0o644)
	if err != nil {
		return nil
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil || f.Truncate(0) != nil {
		_ = f.Close() // nothing was written
		return nil
	}
	return &startError{f: f}
}

// write leaves the reason of a failed start.
func (s *startError) write(err error, log hclog.Logger) {
	if s == nil {
		return
	}
	e := &api.Error{Code: api.CodeFailed, Message: err.Error()}
	var de *volume.Error
	if errors.As(err, &de) {
		e.Hint = de.Hint
	}
	body, jerr := json.Marshal(api.ErrorBody{Error: e})
	if jerr == nil {
		_, jerr = s.f.WriteAt(body, 0)
	}
	if jerr != nil {
		log.Warn("cannot leave the reason for volctl", "file", s.f.Name(), "error", jerr)
	}
}

// close gives up the lock.
func (s *startError) close() {
	if s != nil {
		_ = s.f.Close() // what was written is for this boot alone
	}
}
