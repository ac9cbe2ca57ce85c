package process

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// StartError is a file that tells volctl why the agent does not start. Without the file, volctl
// would wait for an agent that never answers if systemd listens on the agent's socket.
//
// A running agent holds a lock on the file. If a second agent fails to start meanwhile, it cannot
// write the file, so volctl still waits for the running agent.
type StartError struct{ f *os.File }

// OpenStartError opens and empties the file, unless another agent is running. It returns nil if the
// directory does not exist, because a wrong configuration must not create files.
func OpenStartError(socket string) *StartError {
	if !filepath.IsAbs(socket) {
		return nil
	}

	const flags = os.O_RDWR | os.O_CREATE | unix.O_NOFOLLOW | unix.O_NONBLOCK
	f, err := os.OpenFile(api.StartError(socket), flags, 0o644)
	if err != nil {
		return nil
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil || f.Truncate(0) != nil {
		_ = f.Close() // closing cannot lose data, because the file was not written
		return nil
	}

	return &StartError{f: f}
}

// Write stores the reason of a failed start.
func (s *StartError) Write(err error, log hclog.Logger) {
	if s == nil {
		return
	}

	e := &api.Error{Code: api.CodeFailed, Message: err.Error()}
	var de *volume.Error
	if errors.As(err, &de) {
		e.Hint = suggest.Hint(de.Remedy, de.Hint)
	}
	body, jerr := json.Marshal(api.ErrorBody{Error: e})
	if jerr == nil {
		_, jerr = s.f.WriteAt(body, 0)
	}
	if jerr != nil {
		log.Warn("cannot leave the reason for volctl", "file", s.f.Name(), "error", jerr)
	}
}

// Close releases the lock.
func (s *StartError) Close() {
	if s != nil {
		_ = s.f.Close() // no sync is needed, because the contents are valid only for this boot
	}
}
