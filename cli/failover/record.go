package failover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// stateDir is the directory for the records and switches of this host. Only root can write there.
const stateDir = "/var/lib/volagent-failover"

// files are the files of one service in the state directory. The name of a unit is a valid file name.
type files struct{ dir, unit string }

func (f files) switchPath() string { return filepath.Join(f.dir, f.unit+".paused") }
func (f files) recordPath() string { return filepath.Join(f.dir, f.unit+".json") }

// paused reports whether the maintenance switch of this host is on. If the switch cannot be read, it
// counts as on, because an administrator may rely on it.
func (f files) paused() bool {
	_, err := os.Lstat(f.switchPath())
	return !errors.Is(err, fs.ErrNotExist)
}

// pause turns the maintenance switch on.
func (f files) pause(now time.Time) error {
	return f.replace(f.switchPath(), []byte("since "+now.UTC().Format(time.RFC3339)+"\n"))
}

// resume turns the maintenance switch off. It also forgets the failures, so that this host can take the
// volume at once.
func (f files) resume() error {
	for _, path := range []string{f.switchPath(), f.recordPath()} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// read returns the record of the service. Without a readable record, this host knows of no failure.
func (f files) read() (r record, err error) {
	raw, err := os.ReadFile(f.recordPath())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return r, nil
	case err != nil:
		return r, err
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return record{}, fmt.Errorf("cannot read %s: %w", f.recordPath(), err)
	}
	return r, nil
}

// write stores the record of the service.
func (f files) write(r record) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return f.replace(f.recordPath(), append(raw, '\n'))
}

// replace replaces a file atomically.
func (f files) replace(path string, text []byte) error {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return err
	}

	file, err := os.CreateTemp(f.dir, ".new-*")
	if err != nil {
		return err
	}

	_, err = file.Write(text)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}

	return nil
}

// Unit returns the name of the unit that starts and stops a service.
func Unit(service string) string { return "failover-" + service }

// isService reports whether a text is a service, whose name is also a valid file name.
func isService(unit string) bool {
	stem, ok := strings.CutSuffix(unit, ".service")
	return ok && stem != "" && !strings.HasPrefix(stem, "@") && !strings.HasPrefix(unit, ".") && !strings.ContainsFunc(stem, func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		digit := r >= '0' && r <= '9'
		return !letter && !digit && !strings.ContainsRune(`:-_.\@`, r)
	})
}
