package volmgr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/untrusted"
	"github.com/volagent/volagent/volmgr/volume"
)

// noteDir returns the directory of a plugin's notes. It is beside the mounts, never under one.
func (m *Manager) noteDir(pluginID string) string {
	return filepath.Join(m.o.Root, volume.PluginComponent(pluginID), notesDir)
}

// NotePath returns the path of a claim's note. No component contains an "@".
func (m *Manager) NotePath(v volume.Volume, alloc string) string {
	return filepath.Join(m.noteDir(v.PluginID), volume.VolumeComponent(v.ID)+"@"+volume.AllocComponent(alloc)+".json")
}

// WriteNote writes a note in place of the previous one. It does not sync the note, because a note
// counts only while its mounts exist. Two calls for one claim must not overlap.
func (m *Manager) WriteNote(n volume.Note) error {
	n.Boot, n.Namespace = m.o.Host.Boot(), m.o.Host.Namespace()
	raw, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("cannot encode a note: %w", err)
	}

	path := m.NotePath(n.Record.Volume, n.Claim.Alloc)
	tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	err = writeFile(tmp, raw)
	if errors.Is(err, os.ErrNotExist) {
		if err = m.MakeDir(filepath.Dir(filepath.Dir(path))); err == nil {
			err = os.Mkdir(filepath.Dir(path), 0o700)
		}
		if err == nil || errors.Is(err, os.ErrExist) {
			err = writeFile(tmp, raw)
		}
	}
	if err == nil {
		err = os.NewSyscallError("rename", syscall.Rename(tmp, path))
	}
	if err != nil {
		_ = os.Remove(tmp) // the write failed; the next one replaces this file
		return fmt.Errorf("cannot write a note of the claim of %q on volume %q: %w", n.Claim.Alloc, n.Record.Volume.ID, err)
	}

	return nil
}

// writeFile is like os.WriteFile with half the system calls, because a claim waits for it. It does
// not block on a FIFO and does not follow links.
func writeFile(path string, raw []byte) error {
	fd, err := -1, error(syscall.EINTR)
	for errors.Is(err, syscall.EINTR) {
		fd, err = syscall.Open(path, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_TRUNC|syscall.O_CLOEXEC|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0o600)
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}

	f := os.NewFile(uintptr(fd), path) // os.OpenFile would first try to use epoll
	_, err = f.Write(raw)
	return errors.Join(err, f.Close())
}

// DropNote removes the note of a claim, if it exists.
func (m *Manager) DropNote(v volume.Volume, alloc string) error {
	if err := os.Remove(m.NotePath(v, alloc)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot remove the note of the claim of %q on volume %q: %w", alloc, v.ID, err)
	}
	return nil
}

// HasNote reports whether a claim has a note.
func (m *Manager) HasNote(v volume.Volume, alloc string) bool {
	_, err := os.Lstat(m.NotePath(v, alloc))
	return err == nil
}

// Notes reads all notes, except those at the paths in skip. Invalid notes stay in place, and bad
// has an error for each.
func (m *Manager) Notes(skip map[string]bool) (notes []volume.Note, bad []error) {
	plugins, err := os.ReadDir(m.o.Root)
	if err != nil {
		return nil, []error{fmt.Errorf("cannot look for notes: %w", err)}
	}

	for _, p := range plugins {
		dir := filepath.Join(m.o.Root, p.Name(), notesDir)
		files, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			bad = append(bad, fmt.Errorf("cannot look for notes: %w", err))
		}
		for _, f := range files {
			path := filepath.Join(dir, f.Name())
			if skip[path] || strings.HasPrefix(f.Name(), ".") {
				continue // the dot marks a note that was being written
			}
			n, err := m.readNote(path)
			if err != nil {
				bad = append(bad, err)
				continue
			}
			notes = append(notes, n)
		}
	}

	return notes, bad
}

// maxNote limits the size of a note, in bytes. A volume's record with all its contexts takes some
// tens of KiB.
const maxNote = 4 << 20

// readNote reads a note and checks that it matches its file name.
func (m *Manager) readNote(path string) (n volume.Note, err error) {
	raw, err := untrusted.ReadFile(path, maxNote)
	if err == nil {
		err = json.Unmarshal(raw, &n)
	}
	if err == nil {
		err = n.Check()
	}
	if err == nil && m.NotePath(n.Record.Volume, n.Claim.Alloc) != path {
		err = fmt.Errorf("it is about the claim of %q on volume %q of plugin %q", n.Claim.Alloc, n.Record.Volume.ID, n.Record.Volume.PluginID)
	}
	if err != nil {
		return n, &BadNote{Path: path, Err: err}
	}
	return n, nil
}

// BadNote is the error for a note that is invalid.
type BadNote struct {
	Path string
	Err  error
}

// Error implements error.
func (b *BadNote) Error() string { return fmt.Sprintf("cannot use the note %s: %v", b.Path, b.Err) }

// Unwrap returns the reason.
func (b *BadNote) Unwrap() error { return b.Err }

// adoptWithin limits the time to observe all noted volumes. A mount that has not answered by then
// is known only from the mount table. adoptAtOnce limits the number of volumes that are observed
// concurrently.
const (
	adoptWithin = 8 * time.Second
	adoptAtOnce = 16
)

// Adopt rebuilds the records of volumes from notes and current mounts. It changes nothing on the
// host.
func (m *Manager) Adopt(ctx context.Context, notes []volume.Note) []volume.Record {
	ctx, cancel := context.WithTimeout(ctx, adoptWithin)
	defer cancel()
	live := map[string]bool{}

	for _, n := range notes {
		if n.Boot == m.o.Host.Boot() && n.Namespace == m.o.Host.Namespace() {
			live[n.Record.Volume.ID] = true
		}
	}

	records := volume.Gather(notes)
	table := sync.OnceValues(func() ([]mount.Entry, error) { return m.o.Host.Under(m.o.Root) })
	var wg sync.WaitGroup
	slots := make(chan struct{}, adoptAtOnce)

	for i, r := range records {
		slots <- struct{}{}
		wg.Go(func() {
			records[i] = volume.Adopt(r, m.recognise(r, m.Observe(ctx, r, volume.Glimpse{}), table), live[r.Volume.ID])
			<-slots
		})
	}

	wg.Wait()
	return records
}

// recognise completes an observation with the identities of the mounts that gave no answer. The
// mount table contains these identities, except for the unique id, and reading it opens no mount.
func (m *Manager) recognise(r volume.Record, o volume.Observed, table func() ([]mount.Entry, error)) volume.Observed {
	know := func(path string, s volume.Sight, noted *volume.MountIdentity) volume.Sight {
		if s.Seen != volume.SeenHung && s.Seen != volume.SeenError || noted == nil {
			return s
		}
		entries, err := table()
		if err != nil {
			return s
		}
		for _, e := range entries {
			e.Identity.ID, e.Identity.Backing = noted.ID, noted.Backing
			if e.Path == path && !e.Covered && e.Identity == *noted {
				s.Identity = *noted
			}
		}

		return s
	}

	o.Staging = know(r.Node.StagingPath, o.Staging, r.Node.Mount)
	for alloc, c := range r.Claims {
		o.Targets[alloc] = know(c.Target, o.Targets[alloc], c.Mount)
	}

	return o
}
